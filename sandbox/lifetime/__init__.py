"""A sandbox from its label to its destruction: its owner, its connection, its end."""
