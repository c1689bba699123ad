"""Copies of living sandboxes of this node: their files are sealed, and shared by copy-on-write."""
