"""Task families, a package each."""
