"""prorl_mq: rollout-as-a-service for multi-turn LLM agents, on Redis streams."""

__version__ = "0.1.0"
