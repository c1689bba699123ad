"""Replicated mode: what a confirmation costs, how long a fail-over takes, and what either loses."""
