"""What namespaces on a cluster cost and carry, and what pauses them."""
