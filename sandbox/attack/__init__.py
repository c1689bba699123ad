"""Attacks on the sandboxes of this machine: a self-check that tries to get out."""
