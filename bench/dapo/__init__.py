"""How fast and how fairly DAPO batches are filled, and how fast what they do not need is stopped."""
