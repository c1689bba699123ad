"""Decisions as pure functions: no Redis, no clock, no I/O."""
