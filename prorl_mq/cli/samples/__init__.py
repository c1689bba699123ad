"""Commands that act on what rollouts have left: calls that are made again, artefacts that are scored again."""
