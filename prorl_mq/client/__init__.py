"""The trainer's client: the same calls over HTTP and straight over Redis, async and sync.

Over HTTP it loads msgspec and aiohttp alone, so that it fits into any trainer's environment; a Redis address loads
redis too.
"""

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.synchronous import Client
from prorl_mq.client.transport import ClosedBatch, ClosedGroup
from prorl_mq.errors import ServiceError
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import CancelAnswer, RunStatus

__all__ = [
    "AsyncClient",
    "CancelAnswer",
    "Client",
    "ClosedBatch",
    "ClosedGroup",
    "RunSettings",
    "RunStatus",
    "ServiceError",
]
