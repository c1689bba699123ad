"""The trainer's client: the same calls over HTTP and straight over Redis, async and sync.

It needs nothing but redis, msgspec and httpx, so that it fits into any trainer's environment.
"""

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.synchronous import Client
from prorl_mq.client.transport import ClosedBatch, ClosedGroup
from prorl_mq.errors import ServiceError
from prorl_mq.service.cancel import CancelAnswer
from prorl_mq.store.run_settings import RunSettings
from prorl_mq.store.runs import RunStatus

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
