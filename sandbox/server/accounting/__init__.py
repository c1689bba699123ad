"""Memory of a sandbox that belongs to none of its processes in particular."""
