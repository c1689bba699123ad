"""Isolated places where an agent's tools act."""
