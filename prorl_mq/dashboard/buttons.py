"""rq-dashboard's buttons: verbs of ours, or refused with a reason. None of its own handlers ever runs.

They act on RQ's keys, which only mirror the queue: what they did there would be undone, and would help nobody.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from prorl_mq.dashboard import rq_format as rq
from prorl_mq.errors import Conflict, NotFound
from prorl_mq.schema.ids import JobRef, public
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.service import cancel, inspect
from prorl_mq.store import jobs
from prorl_mq.store.server.connection import ask
from prorl_mq.store.store import Store

Press = Callable[[Request], Awaitable[str]]
STAYS: Final = (
    "Nothing was requeued: a job that has ended stays ended, and its group has made refills of its own. "
    "Submit the task again to run it again."
)
LEAVES: Final = "Nothing was removed: ended records leave by themselves, the oldest first."


class ButtonRefused(Exception):
    """The message says why nothing was done."""


class Buttons:
    """The routes that stand before rq-dashboard's."""

    def __init__(self, store: Store, mirror: "Redis") -> None:
        self._store = store
        self._mirror = mirror

    def routes(self) -> list[Route]:
        pressed = {
            "/job/{record}/delete": self._delete,
            "/job/{record}/requeue": self._requeue,
            "/requeue/{queue}": self._requeue,
            "/queue/{queue}/{registry}/empty": self._empty,
            "/queue/{queue}/compact": self._compact,
        }
        return [Route(path, _answered(press), methods=["POST"]) for path, press in pressed.items()]

    async def _delete(self, request: Request) -> str:
        """Cancels a job, from the record of the stage that it is in."""
        ref, stage = _job(request.path_params["record"])
        [job] = await jobs.read(self._store, [ref])
        if job is None or job.state == State.DONE:
            why = (await inspect.job_status(self._store, ref)).why
            raise ButtonRefused(f"{public(ref)} is not cancelled: it has {why}. {LEAVES}")
        if job.stage is not stage:
            raise ButtonRefused(f"{public(ref)} has left {stage.value} and is in {job.stage.value}: delete it there.")
        answer = await cancel.cancel(self._store, "job", ref)
        return f"{answer.id}: {answer.state}. Its record moves to the canceled registry when it has stopped."

    async def _requeue(self, request: Request) -> str:  # noqa: ARG002 - the same for every job
        raise ButtonRefused(STAYS)

    async def _empty(self, request: Request) -> str:
        """Cancels what is listed as queued."""
        if request.path_params["registry"] != "queued":
            raise ButtonRefused(LEAVES)
        stage = _stage(request.path_params["queue"])
        rows = await ask(self._mirror, "LRANGE", rq.queue_key(stage), 0, -1)
        listed = [rq.job_of(row.decode())[0] for row in rows]
        cancelled = 0
        for chunk_start in range(0, len(listed), cancel.SLICE):
            cancelled += await self._cancel_queued(stage, listed[chunk_start : chunk_start + cancel.SLICE])
        return f"{cancelled} jobs that waited for {stage.value} were cancelled."

    async def _cancel_queued(self, stage: Stage, refs: list[JobRef]) -> int:
        """The mirror lags: what has been claimed meanwhile continues."""
        waiting = [
            job.ref
            for job in await jobs.read(self._store, refs)
            if job is not None and job.state == State.QUEUED and job.stage is stage
        ]
        for ref in waiting:
            await cancel.cancel(self._store, "job", ref)
        return len(waiting)

    async def _compact(self, request: Request) -> str:
        return f"The list of {_stage(request.path_params['queue']).value} has no gaps: nothing was to be done."


def _answered(press: Press) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(request: Request) -> JSONResponse:
        try:
            return JSONResponse({"status": "OK", "message": await press(request)})
        except (ButtonRefused, NotFound, Conflict) as refusal:
            return JSONResponse({"status": "REFUSED", "message": str(refusal)}, status_code=409)

    return answer


def _job(record: str) -> tuple[JobRef, Stage]:
    try:
        return rq.job_of(record)
    except ValueError:
        raise ButtonRefused(f"{record!r} is no record of a job.") from None


def _stage(queue: str) -> Stage:
    try:
        return Stage(queue)
    except ValueError:
        raise ButtonRefused(f"there is no queue {queue!r}.") from None
