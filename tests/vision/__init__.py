"""Images on a real vLLM with a tiny model that has vision (`make test-vision`)."""
