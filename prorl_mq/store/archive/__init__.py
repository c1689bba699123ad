"""Acknowledged groups that wait for the archive, and the place of the archive's files."""
