"""Wire protocols of backends: one module each, and what they share."""
