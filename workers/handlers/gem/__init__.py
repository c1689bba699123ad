"""Environments of the package gem-llm."""
