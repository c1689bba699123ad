"""The intake: messages of trainers that speak to Redis alone are taken, carried out and answered.

A message stays on its stream until its answer is on the result stream, so a process that dies in between leaves it to
the next one; every message may be carried out twice. A bad one is answered and removed: it never stops the intake.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.cancelling import AskedCancels
from prorl_mq.errors import (
    Conflict,
    InvalidBatch,
    InvalidCursor,
    InvalidTask,
    NotFound,
    OverQuota,
    ProrlError,
    UnknownDataSource,
)
from prorl_mq.process import tracing
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import RunRef, batch_ref, pool_ref, public
from prorl_mq.schema.intake import (
    Acknowledge,
    AddBackend,
    AnnouncePolicy,
    Cancel,
    Configure,
    IntakeAnswer,
    IntakeMessage,
    ListRuns,
    Submit,
    decode_message,
)
from prorl_mq.schema.messages import BatchAccepted, BatchRequest
from prorl_mq.service import cancel, inspect, submit
from prorl_mq.store import pools, results, runs
from prorl_mq.store.direct import cancellable, consumers
from prorl_mq.store.results import IntakeEntry
from prorl_mq.store.store import Store

AT_ONCE = 16
IDLE_BLOCK_MS = 1_000
NOBODY_WAIT_S = 0.5
TENANTS_S = 2.0  # how long the tenants' Redis users are known for
RESTART_WAIT_S = 0.01  # before the streams that can be read are read
MESSAGE_BYTES: Final = 64 << 20
STATUSES: Final[dict[type[ProrlError], int]] = {
    Conflict: 409, InvalidBatch: 422, InvalidCursor: 422, OverQuota: 429, NotFound: 404, InvalidTask: 422,
    UnknownDataSource: 422,
}  # fmt: skip


class Intake:
    """The intake loop."""

    def __init__(self, store: Store, tracing: Tracing | None = None) -> None:
        self.store = store
        self.tracing = tracing
        self._apart = Apart(store, "intake")
        self._cancels = AskedCancels(store, self._apart)
        self._tenants: list[str] = []
        self._tenants_until = 0.0

    async def turn(self) -> float:
        """Takes what lies on the intake streams, oldest first; blocks while nothing does."""
        await self._look()
        registered = await self._registered()
        await self._cancels.turn({*self._tenants, *(run.partition(":")[0] for run in registered)})
        with_intake = [run for run in registered if not self._apart.left_out(run)]
        if not with_intake:
            return NOBODY_WAIT_S
        try:
            found = await results.messages(self.store, with_intake, limit=AT_ONCE, block_ms=IDLE_BLOCK_MS)
        except results.WrongKind as error:
            for run in await results.unreadable(self.store, with_intake):
                await self._apart.leave_out(run, error)
            return RESTART_WAIT_S
        for message in found:
            if not self._apart.left_out(message.run):
                await self._apart.do(message.run, partial(self._take, message))
        return 0.0

    async def _look(self) -> None:
        if monotonic() > self._tenants_until:
            self._tenants = await results.tenants(self.store)
            self._tenants_until = monotonic() + TENANTS_S

    async def _registered(self) -> list[RunRef]:
        """Runs with an intake. One key of them that cannot be read hides its own runs alone."""
        found = await self._of("intakes", partial(results.intakes, self.store))
        for tenant in self._tenants:
            found += await self._of(f"intakes:{tenant}", partial(results.intakes_of, self.store, tenant))
        return list(dict.fromkeys(found))

    async def _of(self, key: str, read: Callable[[], Awaitable[list[RunRef]]]) -> list[RunRef]:
        return [] if self._apart.left_out(key) else await self._apart.do(key, read) or []

    async def _take(self, message: IntakeEntry) -> None:
        answer = await self.answer(message.run, message.entry, message.body)
        await self.store.answer(message.run, message.entry, encode(answer))

    async def answer(self, run: RunRef, entry: str, body: bytes) -> IntakeAnswer:
        """Carries one message out. Only an outage of Redis is raised: then the message is taken again."""
        reply = entry  # a message too broken to name its reply is answered under its own id
        try:
            if len(body) > MESSAGE_BYTES:
                raise InvalidTask(f"the message has {len(body)} bytes; {MESSAGE_BYTES} are allowed")
            reply = _reply_of(body) or entry
            value = await self._carry_out(run, decode_message(body))
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            return IntakeAnswer(reply=reply, ok=False, status=422, error=f"the message cannot be read: {error}")
        except tuple(STATUSES) as error:
            wait_ms = error.retry_after_ms if isinstance(error, OverQuota) else 0
            return IntakeAnswer(
                reply=reply, ok=False, status=STATUSES[type(error)], error=str(error), retry_after_ms=wait_ms
            )
        return IntakeAnswer(reply=reply, ok=True, value=value, status=200)

    async def _carry_out(self, run: RunRef, message: IntakeMessage) -> Any:
        tenant, _, run_id = run.partition(":")
        match message:
            case Submit(batch=batch):
                return await self._submit(run, batch)
            case Acknowledge(cursors=cursors):
                return await results.acknowledge(self.store, run, cursors)
            case Cancel(kind=kind, id=name):
                if name.split(":")[0] != run_id or kind not in {"job", "group", "batch", "run"}:
                    raise NotFound(f"run {public(run)!r} has no {kind} {name!r}")
                return await cancel.cancel(self.store, kind, f"{tenant}:{name}")
            case AnnouncePolicy(pool=pool, version=version, mode=mode, weights=weights):
                await self.store.announce(pool_ref(tenant, pool), version, mode, weights or "")
                return None
            case AddBackend():
                return await pools.add(
                    self.store,
                    pool_ref(tenant, message.pool),
                    message.address,
                    protocol=message.protocol,
                    model=message.model,
                    limit=message.limit,
                )
            case Configure() | ListRuns():
                return await self._about_runs(run, message)
            case _:
                assert_never(message)

    async def _submit(self, run: RunRef, batch: BatchRequest) -> BatchAccepted:
        """Accepts a batch, and makes what its trainer does later work while Redis is full."""
        tenant, _, run_id = run.partition(":")
        if batch.run_id != run_id:
            raise InvalidTask(f"batch {batch.batch_id!r} names run {batch.run_id!r} on the intake of {run_id!r}")
        with tracing.submission(self.tracing, f"{run_id}:{batch.batch_id}") as trace:
            accepted = await submit.accept(self.store, tenant, batch, trace=trace)
        ref = batch_ref(run, batch.batch_id)
        if not accepted.repeated or (await inspect.batch_status(self.store, ref)).open:
            await consumers.create(self.store, run)
            await cancellable.offer(self.store, run, ref)
        return accepted

    async def _about_runs(self, run: RunRef, message: Configure | ListRuns) -> Any:
        if isinstance(message, Configure):
            return await runs.configure(self.store, run, message.settings)
        return await runs.of_tenant(self.store, run.partition(":")[0])


class _Reply(msgspec.Struct):
    reply: str = ""


def _reply_of(body: bytes) -> str:
    try:
        return msgspec.msgpack.decode(body, type=_Reply).reply[:96]
    except msgspec.DecodeError:
        return ""
