"""A service on a real cluster of six nodes."""
