"""Cancelling a job, a group, a batch or a run."""

from api.operations import operation
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef
from prorl_mq.schema.status import CancelAnswer
from prorl_mq.service.cancel import cancel
from prorl_mq.store.store import Store

UNDER_WAY = {202: "It is under way"}


@operation("POST", "/v1/jobs/{id}/cancel", answers=UNDER_WAY, errors=(409,))
async def cancel_job(store: Store, job: JobRef) -> CancelAnswer:
    """Cancel a job: waiting work ends now, workers stop what runs; may be repeated."""
    return await cancel(store, "job", job)


@operation("POST", "/v1/groups/{id}/cancel", answers=UNDER_WAY, errors=(409,))
async def cancel_group(store: Store, group: GroupRef) -> CancelAnswer:
    """Cancel a group: waiting work ends now, workers stop what runs; may be repeated."""
    return await cancel(store, "group", group)


@operation("POST", "/v1/batches/{id}/cancel", answers=UNDER_WAY, errors=(409,))
async def cancel_batch(store: Store, batch: BatchRef) -> CancelAnswer:
    """Cancel a batch: waiting work ends now, workers stop what runs; may be repeated."""
    return await cancel(store, "batch", batch)


@operation("POST", "/v1/runs/{id}/cancel", answers=UNDER_WAY, errors=(409,))
async def cancel_run(store: Store, run: RunRef) -> CancelAnswer:
    """Cancel a run: waiting work ends now, workers stop what runs; may be repeated."""
    return await cancel(store, "run", run)
