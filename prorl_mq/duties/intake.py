"""The intake: messages of trainers that speak to Redis alone are taken, carried out and answered.

A message stays on its stream until its answer is on the result stream, so a process that dies in between leaves it to
the next one; every message may be carried out twice. A bad one is answered and removed: it never stops the intake.
Each tenant's messages are taken in a task of its own, one after the other: large or slow ones delay no other tenant's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.cancelling import AskedCancels
from prorl_mq.duties.tasks import Tasks
from prorl_mq.errors import (
    AddressRefused,
    Conflict,
    InvalidBatch,
    InvalidCursor,
    InvalidTask,
    NotFound,
    NoWorkersYet,
    OverQuota,
    PayloadUnavailable,
    PayloadUnwritten,
    ProrlError,
    RunArriving,
    RunMoved,
    UnknownDataSource,
)
from prorl_mq.process import tracing
from prorl_mq.process.tracing import Tracing
from prorl_mq.rules.memory import ADMIT_SHARE
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import BatchRef, JobRef, RunRef, batch_ref, pool_ref, public, tenant_of
from prorl_mq.schema.intake import (
    Acknowledge,
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
from prorl_mq.schema.messages import BatchAccepted, BatchRequest
from prorl_mq.schema.status import CancelAnswer, ForkAnswer, PauseAnswer
from prorl_mq.service import cancel, fork, inspect, pause, submit
from prorl_mq.service.backends import Registrar
from prorl_mq.store import results, runs
from prorl_mq.store.direct import cancellable, consumers, mail
from prorl_mq.store.direct.mail import IntakeEntry, Mail, Weight
from prorl_mq.store.moves import moving
from prorl_mq.store.pools import BackendInfo
from prorl_mq.store.server import fitness
from prorl_mq.store.server.faults import FaultKind, RedisError, is_everybodys, kind_of
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")
ALONE_AT_ONCE: Final = 16  # messages of an intake that is read alone
LARGE_AT_ONCE: Final = 4  # intakes that are read alone, of all tenants
IDLE_BLOCK_MS = 1_000
BUSY_BLOCK_MS = 50  # while a tenant's messages are still being taken: it is looked at again
PATIENCE_S = 0.2  # how long one turn waits for a tenant; what takes longer continues beside the next turns
NOBODY_WAIT_S = 0.5
TENANTS_S = 2.0  # how long the tenants' Redis users are known for
MESSAGE_BYTES: Final = 64 << 20
LONG_BYTES: Final = 128 << 10  # of a message that is read in a thread: three million values take seconds
ERROR_CHARS: Final = 2_000  # of an answer's error: it may quote the message
FULL: Final = "Redis is full: acknowledge results, or give it more memory, then send the message again"
STATUSES: Final[dict[type[ProrlError], int]] = {
    AddressRefused: 403, Conflict: 409, InvalidBatch: 422, InvalidCursor: 422, OverQuota: 429, NotFound: 404,
    InvalidTask: 422, NoWorkersYet: 503, UnknownDataSource: 422, PayloadUnavailable: 503, PayloadUnwritten: 503,
    RunMoved: 421, RunArriving: 503,
}  # fmt: skip


class Intake:
    """The intake loop."""

    def __init__(
        self,
        store: Store,
        tracing: Tracing | None = None,
        *,
        registrar: Registrar | None = None,
        apart: Store | None = None,
    ) -> None:
        """`apart` is for what tenants can make long: their pools."""
        self.store = store
        self._pools = apart or store
        self._registrar = registrar or Registrar()
        self.tracing = tracing
        self._apart = Apart(store, "intake")
        self._cancels = AskedCancels(store, self._apart)
        self._busy = Tasks[str]()  # by tenant
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._tenants: list[str] = []
        self._tenants_until = 0.0

    async def turn(self) -> float:
        """Takes what lies on the intake streams, oldest first; blocks while nothing does. Raises what Redis does to a
        tenant's calls.
        """
        self._busy.end()
        await self._look()
        registered = await self._registered()
        tenants = {*self._tenants, *map(tenant_of, registered)}
        cancels = await self._cancels.asked({each for each in tenants if each not in self._busy})
        free = [run for run in registered if not (tenant_of(run) in self._busy or self._apart.left_out(run))]
        found = await self._mail(free)
        if cancels or found:
            await self._take_each(cancels, found)
        elif free:
            await mail.wait(self.store, free, block_ms=BUSY_BLOCK_MS if self._busy else IDLE_BLOCK_MS)
        else:
            return BUSY_BLOCK_MS / 1000 if self._busy else NOBODY_WAIT_S
        return 0.0

    async def aclose(self) -> None:
        """Stops what still runs. Its messages stay on their intakes."""
        await self._busy.cancel()

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

    async def _mail(self, runs: Sequence[RunRef]) -> list[Mail]:
        """Contents of intakes, beginning with any of them: a look has not always room for all."""
        at = int(chance.fraction() * len(runs))
        found = await mail.look(self.store, [*runs[at:], *runs[:at]])
        for each in found:
            if each.bytes < 0:
                await self._apart.leave_out(each.run, mail.WrongKind(f"the intake of run {each.run!r} is no stream"))
        return [each for each in found if each.bytes >= 0]

    async def _take_each(self, cancels: Sequence[str], found: Sequence[Mail]) -> None:
        """Begins each tenant's work, its cancels first, and waits for it for a while."""
        tenants = {tenant_of(name) for name in (*cancels, *(each.run for each in found))}
        for tenant in tenants:
            mine = [name for name in cancels if tenant_of(name) == tenant]
            self._busy.start(tenant, self._take_all(mine, [each for each in found if tenant_of(each.run) == tenant]))
        await self._busy.wait(within_s=PATIENCE_S, of=tenants)

    async def _take_all(self, cancels: Sequence[str], found: Sequence[Mail]) -> None:
        await self._cancels.carry_out(cancels)
        for each in found:
            if each.messages is not None:
                await self._take_some(each.messages)
            else:
                async with self._large:
                    await self._take_alone(each)

    async def _take_alone(self, each: Mail) -> None:
        """Messages of an intake that holds much. The first is weighed unless all of them together may be read."""
        count = min(each.length, ALONE_AT_ONCE)
        if each.bytes > MESSAGE_BYTES:
            count = 1
            first = await self._apart.do(each.run, partial(mail.weigh, self.store, each.run))
            if first is None:
                return
            if first.bytes > MESSAGE_BYTES:
                await self._apart.do(each.run, partial(self._refuse, each.run, first))
                return
        read = partial(mail.alone, self.store, each.run, limit=count)
        await self._take_some(await self._apart.do(each.run, read) or [])

    async def _take_some(self, messages: Sequence[IntakeEntry]) -> None:
        for message in messages:
            if not self._apart.left_out(message.run):
                await self._apart.do(message.run, partial(self._take, message))

    async def _refuse(self, run: RunRef, large: Weight) -> None:
        error = f"the message has {large.bytes} bytes; {MESSAGE_BYTES} are allowed: submit several smaller batches"
        answer = IntakeAnswer(reply=large.entry, ok=False, status=422, error=error)
        await self.store.answer(run, large.entry, encode(answer))

    async def _take(self, message: IntakeEntry) -> None:
        answer = await self.answer(message.run, message.entry, message.body, other=message.other)
        await self.store.answer(message.run, message.entry, encode(answer))

    async def answer(self, run: RunRef, entry: str, body: bytes, *, other: bytes | None = None) -> IntakeAnswer:
        """Carries one message out. A fault of Redis or of this machine is raised: then the message is taken again. One
        that a full Redis refuses is answered so: what lies behind it may free memory. So is one that meets a defect of
        ours, or it would stand in front of its run's others without limit.
        """
        reply = entry  # a message too broken to name its reply is answered under its own id
        try:
            reply = _reply_of(body) or entry
            if len(body) < LONG_BYTES:
                message = decode_message(body, other)
            else:
                message = await asyncio.to_thread(decode_message, body, other)
            value = await self._carry_out(run, message)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            return IntakeAnswer(
                reply=reply, ok=False, status=422, error=f"the message cannot be read: {error}"[:ERROR_CHARS]
            )
        except tuple(STATUSES) as error:
            away = await moving.where(self.store, run) if isinstance(error, NotFound) else None
            return _refusal(reply, away or error)
        except RedisError as error:
            if kind_of(error) is not FaultKind.FULL:
                raise
            return IntakeAnswer(reply=reply, ok=False, status=429, error=FULL, retry_after_ms=2000)
        except Exception as error:
            if isinstance(error, OSError) or is_everybodys(error):
                raise
            log.exception("run=%s: the message %r of its intake meets a defect, and is answered so", run, reply)
            return IntakeAnswer(reply=reply, ok=False, status=500, error=_defect(error)[:ERROR_CHARS])
        return IntakeAnswer(reply=reply, ok=True, value=value, status=200)

    async def _carry_out(self, run: RunRef, message: IntakeMessage) -> Any:
        tenant = tenant_of(run)
        match message:
            case Submit(batch=batch):
                return await self._submit(run, batch)
            case Acknowledge(cursors=cursors):
                return await results.acknowledge(self.store, run, cursors)
            case Cancel() | PauseMessage() | ResumeMessage() | ForkMessage():
                return await self._about_jobs(run, message)
            case AnnouncePolicy(pool=pool, version=version, mode=mode, weights=weights):
                await self.store.announce(pool_ref(tenant, pool), version, mode, weights or "")
                return None
            case AddBackend():
                return await self._add_backend(tenant, message)
            case Configure() | ListRuns():
                return await self._about_runs(run, message)
            case _:
                assert_never(message)

    async def _about_jobs(
        self, run: RunRef, message: Cancel | PauseMessage | ResumeMessage | ForkMessage
    ) -> CancelAnswer | PauseAnswer | ForkAnswer:
        if isinstance(message, ForkMessage):
            return await self._fork(run, message)
        kinds = {"job", "group", "batch", "run"} if isinstance(message, Cancel) else {"job", "run"}
        if message.id.split(":")[0] != public(run) or message.kind not in kinds:
            raise NotFound(f"run {public(run)!r} has no {message.kind} {message.id!r}")
        ref = f"{tenant_of(run)}:{message.id}"
        if isinstance(message, Cancel):
            return await cancel.cancel(self.store, message.kind, ref)
        if isinstance(message, PauseMessage):
            return await pause.pause(self.store, message.kind, ref, message.order)
        return await pause.resume(self.store, message.kind, ref)

    async def _fork(self, run: RunRef, message: ForkMessage) -> ForkAnswer:
        if message.id.split(":")[0] != public(run):
            raise NotFound(f"run {public(run)!r} has no job {message.id!r}")
        with tracing.submission(self.tracing, f"fork of {message.id}") as trace:
            ref = JobRef(f"{tenant_of(run)}:{message.id}")
            made = await fork.fork(self.store, ref, message.order, trace=trace, direct=True)
        await self._offer(run, batch_ref(run, made.batch_id), repeated=made.repeated)
        return made

    async def _add_backend(self, tenant: str, said: AddBackend) -> str:
        about = BackendInfo(
            address=said.address, protocol=said.protocol, model=said.model, adapter=said.adapter, limit=said.limit
        )
        pool, has_user = pool_ref(tenant, said.pool), tenant in self._tenants
        return await self._registrar.add(self._pools, pool, about, has_user=has_user)

    async def _submit(self, run: RunRef, batch: BatchRequest) -> BatchAccepted:
        """Accepts a batch, and makes what its trainer does later work while Redis is full."""
        tenant, run_id = tenant_of(run), public(run)
        if batch.run_id != run_id:
            raise InvalidTask(f"batch {batch.batch_id!r} names run {batch.run_id!r} on the intake of {run_id!r}")
        with tracing.submission(self.tracing, f"{run_id}:{batch.batch_id}") as trace:
            accepted = await submit.accept(self.store, tenant, batch, trace=trace, direct=True)
        await self._offer(run, batch_ref(run, batch.batch_id), repeated=accepted.repeated)
        return accepted

    async def _offer(self, run: RunRef, ref: BatchRef, *, repeated: bool) -> None:
        if not repeated or (await inspect.batch_status(self.store, ref)).open:
            await consumers.create(self.store, run)
            await cancellable.offer(self.store, run, ref)

    async def _about_runs(self, run: RunRef, message: Configure | ListRuns) -> Any:
        if isinstance(message, Configure):
            return await runs.configure(self.store, run, message.settings)
        share = (await fitness.memory(self.store)).share
        if share > ADMIT_SHARE:  # a few bytes ask for many, which are stored whatever Redis holds
            why = f"Redis uses {share:.0%} of its memory, and lists runs here below {ADMIT_SHARE:.0%}"
            raise OverQuota(f"{why}: acknowledge results, or ask over HTTP", retry_after_ms=2000)
        return await runs.of_tenant(self.store, tenant_of(run))


def _defect(error: Exception) -> str:
    return (
        f"the message was not carried out: the service raised {type(error).__name__}: {error}; that is a defect of it, "
        "and its log has the traceback: report it, and send no message like this one"
    )


class _Reply(msgspec.Struct):
    reply: str = ""


def _reply_of(body: bytes) -> str:
    try:
        return msgspec.msgpack.decode(body, type=_Reply).reply[:96]
    except msgspec.DecodeError:
        return ""


def _refusal(reply: str, error: ProrlError) -> IntakeAnswer:
    wait_ms = error.retry_after_ms if isinstance(error, (OverQuota, NoWorkersYet, RunArriving)) else 0
    status = STATUSES[type(error)]
    return IntakeAnswer(reply=reply, ok=False, status=status, error=str(error)[:ERROR_CHARS], retry_after_ms=wait_ms)
