"""Processes that serve together, and how many of them a worker is."""
