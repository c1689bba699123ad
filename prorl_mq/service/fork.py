"""Forking a job: a group of samples that begin with its turns, and each continue by themselves."""

import asyncio
from typing import Final, NamedTuple

import msgspec

from prorl_mq.errors import Conflict, NotFound, OverQuota, PayloadUnavailable
from prorl_mq.rules.memory import LOG_SHARE, log_room
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import (
    BatchRef,
    JobRef,
    asked_job,
    batch_ref,
    group_ref,
    job_parts,
    job_ref,
    public,
    run_of,
    tenant_of,
)
from prorl_mq.schema.items import GroupSpec, NewBatch, NewFork, NewGroup, StoredGroup
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import ForkOrder, Stage
from prorl_mq.schema.status import ForkAnswer
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.schema.turns import (
    CHECKPOINT,
    SCHEMA,
    WORLD,
    Archive,
    Checkpoint,
    Inherited,
    LogReader,
    RecordUnreadable,
    World,
    notes,
)
from prorl_mq.service import inspect
from prorl_mq.service.fork_records import CannotFork, of_log, of_trajectory, sampled_tokens
from prorl_mq.service.images import taking
from prorl_mq.service.submit import BLOB_BYTES, SentWith, digest_of, group_name, new_group, why_full
from prorl_mq.store import batches, families, groups, jobs
from prorl_mq.store.payloads.images import names
from prorl_mq.store.server import fitness
from prorl_mq.store.store import Store

TRIES: Final = 5  # a job may move between the look and the verb


class _Source(NamedTuple):
    """Turns that a fork begins with, and the checkpoint behind one of them."""

    records: list[bytes]
    point: Checkpoint | None = None
    saved: bytes = b""
    saved_in: str = ""
    lender: str = ""
    sandbox: str = ""


async def fork(
    store: Store, ref: JobRef, order: ForkOrder, *, trace: str | None = None, direct: bool = False
) -> ForkAnswer:
    """Stores a group of `order.n` jobs that begin with the turns 0 to `order.turn` of a job. A repeat of the same name
    is the same fork, also when the job is gone.

    Raises `NotFound`, `Conflict` where the job cannot be forked there, `OverQuota`, `PayloadUnavailable` and
    `PayloadUnwritten`.
    """
    parts = asked_job(ref)
    name = order.name or f"{parts.group[:60]}.{parts.sample}-t{order.turn}-n{order.n}"
    batch = batch_ref(parts.run_ref, name)
    digest = digest_of(ref.encode(), encode((order.turn, order.n, order.priority)))
    stored_by = await batches.server(store) if store.synced else b""
    known = await batches.digest(store, batch)
    if known is not None:
        answer = await _repeated(store, ref, batch, order, same=known == digest)
    else:
        answer = await _made(store, ref, batch, order, digest, SentWith(trace, direct))
    if store.synced:
        await batches.sync(store, batch, stored_by=stored_by)
    return answer


async def _made(
    store: Store, ref: JobRef, batch: BatchRef, order: ForkOrder, digest: str, sent_with: SentWith
) -> ForkAnswer:
    if full := await why_full(store, run_of(batch)):
        raise full
    for _ in range(TRIES):
        group = await _group(store, ref)
        parent, sealed, copies = await _parent(store, ref, group, order, direct=sent_with.direct)
        if sent_with.direct and names(parent.payload):
            raise _refused(ref, "its task has images, and who asks reads Redis alone: send the fork over HTTP")
        if order.turn + 1 >= parent.sampling.max_turns:
            raise _refused(ref, f"its rollouts end after {parent.sampling.max_turns} turns: fork it at an earlier turn")
        try:
            source = await _source(store, ref, group, order.turn)
        except CannotFork as error:
            raise _refused(ref, str(error)) from None
        spec = msgspec.structs.replace(
            parent,
            batch=public(batch).partition(":")[2],
            n=order.n,
            max_refills=order.n if parent.max_refills == parent.n else parent.max_refills,  # the default is n
            priority=parent.priority if order.priority is None else order.priority,
            fork=ForkedFrom(job_id=public(ref), turn=order.turn),
        )
        spec = sent_with.added_to(spec)
        turns = encode(Inherited(SCHEMA, public(ref), order.turn, source.records, source.point, source.sandbox))
        opened = encode(spec)
        await _room_for(store, ref, len(turns) + len(source.saved) + len(opened) + len(sealed))
        made = NewGroup(
            group_ref(run_of(batch), spec.batch),
            digest,
            order.n,
            spec.limits.total_ms,
            opened,
            sealed,
            spec.data_source,
            await taking.put_again(store, tenant_of(ref), spec.payload),
        )
        new = NewBatch(run_of(batch), batch, digest, 1, order.n, spec.purpose, spec.priority)
        begins = NewFork(
            turns, ref, source.saved, source.saved_in, source.lender, job_parts(ref).group_ref if copies else None
        )
        word = await store.fork(new, made, begins)
        if word == "forked":
            return _answer(ref, batch, order, shared=sampled_tokens(source.records), restores=_restores(source.point))
        if word in {"already", "conflict"}:  # another process was faster
            return await _repeated(store, ref, batch, order, same=word == "already")
    raise Conflict(f"{public(ref)!r} moved on {TRIES} times while it was looked at: send the fork again")


async def _group(store: Store, ref: JobRef) -> StoredGroup:
    parts = asked_job(ref)
    [group] = await groups.read(store, [parts.group_ref])
    if group is None:
        gone = "there is no such job, or its group was acknowledged, and its turns are gone with it"
        raise NotFound(f"{public(ref)!r} cannot be forked: {gone}: fork a job before you acknowledge its group")
    if not group.cursor and parts.sample >= max(group.jobs, group.n):
        raise NotFound(f"group {public(parts.group_ref)!r} has no sample {parts.sample}")
    return group


async def _parent(
    store: Store, ref: JobRef, group: StoredGroup, order: ForkOrder, *, direct: bool
) -> tuple[GroupSpec, bytes, bool]:
    """The spec of the job's group, its sealed part where the caller has given it, and whether Redis has that."""
    if group.spec is not None:
        return group.spec, b"", True
    if order.batch is None:
        raise _refused(ref, "its group has closed, and the service has its task no more: send the batch with it, as it "
                            "was submitted (`batch` of Client.fork and of the HTTP body)")  # fmt: skip
    parts = asked_job(ref)
    request = order.batch
    for place, each in enumerate(request.groups):
        if group_name(request, place) == parts.group and request.run_id == parts.run:
            schema = (await families.load(store, [each.task.data_source]))[each.task.data_source]
            known = {each.task.data_source: schema}
            alone = msgspec.structs.replace(request, groups=[each])
            taken = await taking.named(alone, known, direct=direct)
            made = new_group(request, parts.tenant, place, taken.request.groups[0], schema, SentWith())
            if await groups.digest(store, parts.group_ref) != made.digest:
                raise _refused(ref, "the batch that was sent with the fork is another one than was submitted")
            await taking.put(store, parts.tenant, taken)
            return decode(made.open, GroupSpec), made.sealed, False
    raise _refused(ref, f"the batch that was sent with the fork has no group {parts.group!r} of run {parts.run!r}")


async def _source(store: Store, ref: JobRef, group: StoredGroup, turn: int) -> _Source:
    """The turns 0 to `turn` of a job. Raises `CannotFork`."""
    [job] = [None] if group.cursor else await jobs.read(store, [ref])
    if job is None and not group.cursor:
        raise CannotFork("it waits for its admission, and has no turn yet: fork it once it has")
    if job is not None and not _left_run(job):
        try:
            return await _of_log(store, ref, turn)
        except CannotFork:
            [now] = await jobs.read(store, [ref])
            if now is not None and not _left_run(now):
                raise
    try:
        trajectory = await inspect.job_trajectory(store, ref)
    except NotFound:
        raise CannotFork("it ended without a trajectory") from None
    except PayloadUnavailable as error:
        raise CannotFork(f"its trajectory cannot be read here: {error}") from None
    return _Source(await asyncio.to_thread(of_trajectory, trajectory, turn))


def _left_run(job: jobs.Snapshot) -> bool:
    """True once a job's log is gone, and its turns are in its trajectory."""
    return job.state == State.DONE or job.stage is Stage.EVAL


async def _of_log(store: Store, ref: JobRef, turn: int) -> _Source:
    group = job_parts(ref).group_ref
    base, logged = await store.inherited(group), await jobs.log(store, ref)
    saved, lender = await jobs.saved(store, ref), store.keys.job(ref)
    if base is not None and not saved[0]:
        saved, lender = await store.lent(group), store.keys.fork(group)
    reader, records = LogReader(), list(base.records) if base is not None else []
    try:
        records += [record for each in logged if (record := reader.turn(each)) is not None]
        points, worlds = notes(logged, CHECKPOINT, Checkpoint), notes(logged, WORLD, World)
        archives = notes([b"a" + saved[0]], b"a", Archive) if saved[0] else []
    except RecordUnreadable as error:
        raise CannotFork(f"{error}; fork it when its RUN has ended") from None
    points = [base.checkpoint, *points] if base is not None and base.checkpoint is not None else points
    if not records:
        raise CannotFork(
            "it has logged no turn: its first one is under way, or it has no log (third-party agents, MCP tools, Redis "
            "too full); of our own agents, fork it when its RUN has ended"
        )
    if len(records) < 2 * turn + 2:
        ended = len(records) // 2 - 1
        if len(records) == 2 * turn + 1:
            raise CannotFork(f"the calls of turn {turn} are not answered yet: wait, or fork it at an earlier turn")
        raise CannotFork(f"its log ends with turn {ended}: fork it there or before, or wait")
    shared = await asyncio.to_thread(of_log, records[: 2 * turn + 2])
    living = worlds[-1].sandbox if worlds and worlds[-1].whole else ""  # that has all calls of the log
    point = points[-1] if points else None
    if point is None or not 0 <= point.turn <= turn:
        return _Source(shared, sandbox=living)
    if not point.digest:  # nothing differs from what INIT makes
        return _Source(shared, point, sandbox=living)
    if not archives or archives[0].digest != point.digest:
        return _Source(shared, sandbox=living)
    return _Source(shared, point, *saved, lender, living)


async def _room_for(store: Store, ref: JobRef, size: int) -> None:
    """Raises `OverQuota` where Redis has no room for copied turns: logs of running jobs would be given up for them."""
    memory = await fitness.memory(store)
    if size > BLOB_BYTES:
        raise _refused(ref, f"its turns and its task have {size >> 20} MiB; {BLOB_BYTES >> 20} MiB are allowed")
    room = log_room(memory)
    if room is not None and size > room:
        raise OverQuota(
            f"Redis uses {memory.used >> 20} MiB of its memory, and has no room for the {size >> 10} KiB of a fork of "
            f"{public(ref)!r} below {LOG_SHARE:.0%}: acknowledge results, or give it more memory",
            retry_after_ms=2000,
        )


async def _repeated(store: Store, ref: JobRef, batch: BatchRef, order: ForkOrder, *, same: bool) -> ForkAnswer:
    """The answer to a fork that there is. Raises `Conflict` where its name is that of another batch or fork."""
    if not same:
        raise Conflict(f"there is another batch or fork {public(batch)!r}: give this fork another name")
    base = await store.inherited(group_ref(run_of(batch), public(batch).partition(":")[2]))
    shared = sampled_tokens(base.records) if base is not None else 0
    restores = _restores(base.checkpoint) if base is not None else -1
    return _answer(ref, batch, order, shared=shared, restores=restores, repeated=True)


def _answer(
    ref: JobRef, batch: BatchRef, order: ForkOrder, *, shared: int, restores: int, repeated: bool = False
) -> ForkAnswer:
    run, _, name = public(batch).partition(":")
    made = group_ref(run_of(batch), name)
    return ForkAnswer(
        run_id=run,
        batch_id=name,
        jobs=[public(job_ref(made, index)) for index in range(order.n)],
        job_id=public(ref),
        turn=order.turn,
        shared_tokens=shared,
        restores=restores,
        repeated=repeated,
    )


def _restores(point: Checkpoint | None) -> int:
    return -1 if point is None else point.turn


def _refused(ref: JobRef, why: str) -> Conflict:
    return Conflict(f"{public(ref)!r} cannot be forked: {why}")
