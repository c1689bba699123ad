"""Environments of the package verifiers."""
