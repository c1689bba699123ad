"""Sandboxes of another machine, over HTTP: the client's side. docs/reference/remote-sandboxes.md is the protocol."""
