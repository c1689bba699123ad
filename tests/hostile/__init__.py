"""An agent and a node that do their worst, through real sandboxes and the keeper."""
