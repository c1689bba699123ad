"""What holds whatever is done in whatever order."""
