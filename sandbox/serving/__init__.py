"""The reference server of remote sandboxes: those of its own machine over HTTP."""
