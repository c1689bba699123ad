"""The numbered invariants of `docs/invariants.md`, checked on what Redis holds. Nothing here writes."""
