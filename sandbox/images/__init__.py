"""Images: where they come from and where they are cached."""
