"""The task families."""
