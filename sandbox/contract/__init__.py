"""The contract of a server of remote sandboxes, as checks that its author can run (`python -m sandbox contract`)."""
