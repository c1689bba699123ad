"""Bridges to trainers."""
