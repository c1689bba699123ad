"""Moves of runs between cells: where a run is, and its keys as pages of writes."""
