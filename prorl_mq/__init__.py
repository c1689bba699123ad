"""prorl_mq: rollout-as-a-service for multi-turn LLM agents, on Redis streams."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prorl_mq.client import AsyncClient
    from prorl_mq.schema.messages import BatchRequest, GroupRequest, Sampling, Task

__version__ = "0.1.0"
__all__ = ["AsyncClient", "BatchRequest", "GroupRequest", "Sampling", "Task"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("prorl_mq.client" if name == "AsyncClient" else "prorl_mq.schema.messages"), name)
