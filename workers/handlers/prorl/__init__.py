"""Families that ProRL Agent has for its reasoning tasks: a row's own messages, and one answer to them."""
