"""Faults of every kind against real processes, and the same kills on other queues: what is lost, doubled, left over."""
