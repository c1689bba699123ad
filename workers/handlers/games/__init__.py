"""Games of many turns."""
