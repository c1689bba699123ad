"""The agent loop, from messages to a trajectory."""
