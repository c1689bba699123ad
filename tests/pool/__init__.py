"""Pools of backends: who gets a job, what becomes of it when a backend fails, and how new weights reach all of them."""
