"""Submission of a batch, and its progress."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from starlette.requests import Request

from api.operations import operation
from api.request.parameters import whole
from api.service import Service
from prorl_mq.process import tracing
from prorl_mq.schema.ids import BatchRef, RunRef, TenantId
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus
from prorl_mq.service import inspect, submit
from prorl_mq.service.inspect import DatedBatch
from prorl_mq.store.store import BATCHES_CAP, Store


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest batches of a run."""

    batches: Sequence[DatedBatch]


@operation(
    "POST", "/v1/batches", answers={202: "Every group is stored", 200: "It was submitted before"}, errors=(409, 429)
)
async def submit_batch(
    request: Request, service: Service, tenant: TenantId, batch: BatchRequest
) -> tuple[int, BatchAccepted]:
    """Submit groups of rollouts; run_id and batch_id together are the idempotency key."""
    name = f"{batch.run_id}:{batch.batch_id}"
    with tracing.submission(service.tracing, name, request.headers.get("traceparent")) as trace:
        accepted = await submit.accept(service.store, tenant, batch, trace=trace)
    return 200 if accepted.repeated else 202, accepted


@operation("GET", "/v1/batches/{id}")
async def batch_status(store: Store, batch: BatchRef) -> BatchStatus:
    """The number of open groups of a batch, and the verdicts of the others."""
    return await inspect.batch_status(store, batch)


@operation("GET", "/v1/runs/{run}/batches")
async def list_batches(
    store: Store, run: RunRef, limit: Annotated[int, whole(1, BATCHES_CAP, "Batches in the answer at most")] = 50
) -> BatchList:
    """The newest batches of a run and the progress of each."""
    return BatchList(batches=await inspect.newest_batches(store, run, limit=limit))
