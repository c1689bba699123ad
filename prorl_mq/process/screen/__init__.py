"""Text and tables as people read them on a terminal."""
