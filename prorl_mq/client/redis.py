"""The way straight over Redis, without any API process in between; messages wait until one takes them.

The trainer runs no scripts: it adds messages to its run's intake and reads its run's results. State is read with
plain commands.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from prorl_mq import chance
from prorl_mq.client.transport import Closed, ClosedBatch, ClosedGroup, Unreachable
from prorl_mq.errors import (
    InvalidCursor,
    NotFound,
    PayloadUnavailable,
    RedisUnavailable,
    RunArriving,
    RunMoved,
    ServiceError,
)
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import BatchRef, JobRef, RunRef, pool_ref, run_ref
from prorl_mq.schema.intake import (
    AddBackend,
    AnnouncePolicy,
    Cancel,
    Configure,
    ForkMessage,
    IntakeAnswer,
    IntakeMessage,
    ListRuns,
    PauseMessage,
    ResumeMessage,
    Submit,
    decode_message,
)
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, ForkOrder, GroupRecord, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import (
    BatchReport,
    CancelAnswer,
    ForkAnswer,
    PauseAnswer,
    PauseOrder,
    RunMove,
    RunsFound,
    RunStatus,
)
from prorl_mq.schema.strict import Misfit
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns
from prorl_mq.service import inspect, turn_pages
from prorl_mq.store import results, runs
from prorl_mq.store.direct import consumers, intakes
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.pools import policy_status
from prorl_mq.store.results import Result
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.server.faults import OUTAGES, FaultKind, RedisError, kind_of
from prorl_mq.store.store import Store

T = TypeVar("T")
ANSWER_S: Final = 60.0  # how long an API process may take to take a message
FULL: Final = "Redis is full and takes no message: acknowledge results, or cancel a batch or a run; both still work"
SERVICE: Final = "-service"  # the intake of messages that belong to no run


class RedisDoor:
    """Connections of one trainer to Redis."""

    def __init__(self, settings: RedisSettings, *, tenant: str, answer_s: float = ANSWER_S) -> None:
        self.tenant = tenant
        self.answer_s = answer_s
        self._redis = connect(settings, connections=8)
        self._waiting = connect(settings, connections=32)
        keys = Keys(settings.namespace)
        payloads = payloads_of(settings)
        self._store = Store(
            self._redis, keys, name="trainer", outage_ms=0, waiting=self._waiting, payloads=payloads,
            mark=keys.mark_of(tenant), confirms_reads=True,
        )  # fmt: skip

    async def submit(self, batch: BatchRequest) -> BatchAccepted:
        return await self._tell(batch.run_id, Submit(reply=_reply(), batch=batch), BatchAccepted)

    async def page(self, run_id: str, after: str, wait_s: float) -> list[Closed]:
        run = self._run(run_id)
        await _asking(lambda: runs.expect_seen(self._store, run))
        found = await _asking(lambda: self._collect(run, after, int(wait_s * 1000)))
        return [
            ClosedBatch(each.cursor, decode(each.record, BatchReport))
            if each.of_batch
            else ClosedGroup(each.cursor, decode(each.record, GroupRecord))
            for each in found
        ]

    async def ack(self, run_id: str, cursors: Sequence[str]) -> int:
        """Results are deleted a moment later; `page` leaves them out at once."""
        return await _asking(lambda: consumers.acknowledge(self._store, self._run(run_id), cursors))

    async def cancel(self, kind: str, name: str) -> CancelAnswer:
        """A batch or run by its name, which a full Redis does not refuse; all else by a message."""
        ref = RunRef(f"{self.tenant}:{name}")
        if kind == ("batch" if ":" in name else "run"):
            asked = await _asking(lambda: intakes.cancel(self._store, ref, within_s=self.answer_s))
            if asked is not None:
                return _value(asked, CancelAnswer)
        return await self._tell(name.partition(":")[0], Cancel(reply=_reply(), kind=kind, id=name), CancelAnswer)

    async def pause(self, kind: str, name: str, order: PauseOrder) -> PauseAnswer:
        message = PauseMessage(reply=_reply(), kind=kind, id=name, order=order)
        return await self._tell(name.partition(":")[0], message, PauseAnswer)

    async def resume(self, kind: str, name: str) -> PauseAnswer:
        message = ResumeMessage(reply=_reply(), kind=kind, id=name)
        return await self._tell(name.partition(":")[0], message, PauseAnswer)

    async def fork(self, name: str, order: ForkOrder) -> ForkAnswer:
        message = ForkMessage(reply=_reply(), id=name, order=order)
        return await self._tell(name.partition(":")[0], message, ForkAnswer)

    async def job(self, name: str) -> JobStatus:
        return await _asking(lambda: inspect.job_status(self._store, JobRef(f"{self.tenant}:{name}")))

    async def timeline(self, name: str) -> Timeline:
        return await _asking(lambda: inspect.job_timeline(self._store, JobRef(f"{self.tenant}:{name}")))

    async def trajectory(self, name: str) -> Trajectory:
        return await _asking(lambda: inspect.job_trajectory(self._store, JobRef(f"{self.tenant}:{name}")))

    async def turns(self, name: str, after: int) -> LoggedTurns:
        ref = JobRef(f"{self.tenant}:{name}")
        return await _asking(lambda: inspect.job_log(self._store, ref, after=after, limit=turn_pages.AT_ONCE))

    async def batch(self, name: str) -> BatchStatus:
        return await _asking(lambda: inspect.batch_status(self._store, BatchRef(f"{self.tenant}:{name}")))

    async def configure_run(self, run_id: str, settings: RunSettings) -> RunStatus:
        return await self._tell(run_id, Configure(reply=_reply(), settings=settings), RunStatus)

    async def runs(self) -> RunsFound:
        return RunsFound(await self._tell(SERVICE, ListRuns(reply=_reply()), list[RunStatus]))

    async def move(self, _: str, run_id: str, _about: Mapping[str, Any], _query: Mapping[str, str], /) -> RunMove:
        raise ServiceError(f"a router of cells moves run {run_id!r}: give its address, http://HOST:PORT", status=422)

    async def add_backend(
        self,
        pool: str,
        address: str,
        *,
        protocol: str | None,
        model: str | None,
        adapter: str | None,
        limit: int | None,
    ) -> str:
        about: dict[str, Any] = {"protocol": protocol, "model": model, "adapter": adapter, "limit": limit}
        try:
            message = AddBackend(reply=_reply(), pool=pool, address=address, **about)
        except ValueError as error:
            raise ServiceError(str(error), status=422) from None
        return await self._tell(SERVICE, message, str)

    async def announce_policy_version(self, pool: str, version: int, mode: str, weights: str | None) -> None:
        about: dict[str, Any] = {"version": version, "mode": mode, "weights": weights}
        await self._tell(SERVICE, AnnouncePolicy(reply=_reply(), pool=pool, **about), type(None))

    async def policy(self, pool: str) -> PolicyStatus:
        return await _asking(lambda: policy_status(self._store, pool_ref(self.tenant, pool)))

    async def aclose(self) -> None:
        await self._waiting.aclose()
        await self._redis.aclose()

    def _run(self, run_id: str) -> RunRef:
        return run_ref(self.tenant, run_id)

    async def _tell(self, run_id: str, message: IntakeMessage, kind: type[T]) -> T:
        """Adds a message and waits for its answer on the run's results."""
        body = encode(message)
        try:
            decode_message(body)
        except (msgspec.ValidationError, Misfit) as error:
            raise ServiceError(str(error), status=422) from None
        run, within_s = self._run(run_id), self.answer_s
        return _value(await _asking(lambda: intakes.exchange(self._store, run, message.reply, body, within_s)), kind)

    async def _collect(self, run: RunRef, after: str, wait_ms: int) -> list[Result]:
        """Results after a cursor that are not acknowledged: those that are may lie there for another moment."""
        while True:
            found = await results.collect(self._store, run, after=after, wait_ms=wait_ms)
            left = await consumers.unacknowledged(self._store, run, [each.cursor for each in found])
            if left or not found:
                return [each for each in found if each.cursor in left]
            after = found[-1].cursor


def _reply() -> str:
    return chance.name(8)


def _value(answer: IntakeAnswer, kind: type[T]) -> T:
    if answer.ok:
        return msgspec.convert(answer.value, kind)
    said = answer.error or f"the service refused the message with status {answer.status}"
    if answer.status in {429, 503}:
        raise Unreachable(said, status=answer.status, retry_after_s=answer.retry_after_ms / 1000)
    raise ServiceError(said, status=answer.status)


async def _asking(attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await attempt()
    except PayloadUnavailable as error:
        raise ServiceError(f"{error}. Over HTTP: GET /v1/jobs/ID/trajectory") from None
    except NotFound as error:
        raise ServiceError(str(error), status=404) from None
    except RunMoved as error:
        raise ServiceError(str(error), status=421) from None
    except RunArriving as error:
        raise Unreachable(str(error)) from None
    except InvalidCursor as error:
        raise ServiceError(str(error), status=422) from None
    except intakes.Unanswered as error:
        raise Unreachable(str(error)) from None
    except (RedisUnavailable, *OUTAGES) as error:
        raise Unreachable(f"Redis does not answer ({error})") from None
    except RedisError as error:
        if kind_of(error) is FaultKind.FULL:
            raise Unreachable(FULL) from None
        raise ServiceError(f"Redis refused a command: {error}") from None
