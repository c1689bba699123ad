"""Counts of what the code should not have; `python -m ops.gates` holds them."""
