"""Calls to inference backends, in token space."""
