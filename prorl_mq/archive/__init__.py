"""Closed groups with their trajectories as Parquet files: what is left when a trainer has acknowledged them."""
