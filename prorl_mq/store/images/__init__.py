"""Images of sandboxes in Redis."""
