"""Data that crosses a process border or is stored in Redis: plain structs, no Redis."""
