"""Sandboxes against the ways of doing without them."""
