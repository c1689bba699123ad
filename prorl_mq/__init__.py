"""prorl_mq: rollout-as-a-service for multi-turn LLM agents, on Redis streams.

A trainer's names, each imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from prorl_mq.client.asynchronous import AsyncClient
    from prorl_mq.client.rollouts import Rollouts
    from prorl_mq.client.synchronous import Client
    from prorl_mq.schema.dapo import Dapo
    from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Sampling, Task
    from prorl_mq.schema.trajectory import Trajectory

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "BatchRequest",
    "Client",
    "Dapo",
    "GroupRecord",
    "GroupRequest",
    "Limits",
    "Rollouts",
    "Sampling",
    "Task",
    "Trajectory",
    "__version__",
]
_HOMES: Final = {
    "AsyncClient": "client.asynchronous",
    "BatchRequest": "schema.messages",
    "Client": "client.synchronous",
    "Dapo": "schema.dapo",
    "GroupRecord": "schema.messages",
    "GroupRequest": "schema.messages",
    "Limits": "schema.messages",
    "Rollouts": "client.rollouts",
    "Sampling": "schema.messages",
    "Task": "schema.messages",
    "Trajectory": "schema.trajectory",
}


def __getattr__(name: str) -> Any:
    """A public name, from the module that has it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
