"""A sandbox from its label to its destruction: who owns it, how it is reached, how it ends."""
