"""Inference, from token ids to token ids."""
