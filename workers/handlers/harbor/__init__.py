"""Tasks in Harbor's format: a container, an instruction, and a verifier that writes a reward."""
