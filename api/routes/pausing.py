"""Pausing and resuming a job, or a run."""

from api.operations import operation
from prorl_mq.schema.ids import JobRef, RunRef
from prorl_mq.schema.status import PauseAnswer, PauseOrder
from prorl_mq.service import pause
from prorl_mq.store.store import Store


@operation("POST", "/v1/jobs/{id}/pause", errors=(409,))
async def pause_job(store: Store, job: JobRef, order: PauseOrder) -> PauseAnswer:
    """Pause a job: it gives its slot, its backend and its sandbox back at its next turn; may be repeated."""
    return await pause.pause(store, "job", job, order)


@operation("POST", "/v1/jobs/{id}/resume", errors=(409,))
async def resume_job(store: Store, job: JobRef) -> PauseAnswer:
    """Resume a job where it was paused; may be repeated."""
    return await pause.resume(store, "job", job)


@operation("POST", "/v1/runs/{id}/pause")
async def pause_run(store: Store, run: RunRef, order: PauseOrder) -> PauseAnswer:
    """Pause a run: nothing of it is admitted, and all its jobs are paused; may be repeated."""
    return await pause.pause(store, "run", run, order)


@operation("POST", "/v1/runs/{id}/resume")
async def resume_run(store: Store, run: RunRef) -> PauseAnswer:
    """Resume a run with all its jobs; may be repeated."""
    return await pause.resume(store, "run", run)
