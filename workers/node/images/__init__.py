"""Images on this node: who fetches them, which jobs wait for them, and which are removed."""
