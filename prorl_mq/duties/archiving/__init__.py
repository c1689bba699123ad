"""The duty that writes acknowledged groups to the archive."""
