"""The bottleneck advisor: what limits the service now, in one sentence, and what to change."""
