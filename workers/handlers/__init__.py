"""Task families that ship with the service."""
