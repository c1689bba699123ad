"""Tasks in Harbor's format: read, built, run and verified, and the reader against Harbor's own."""
