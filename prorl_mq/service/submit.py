"""Accepting a batch: tasks are checked and split, and every group is in Redis before the answer."""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from prorl_mq.errors import Conflict, InvalidBatch, InvalidTask, OverQuota
from prorl_mq.rules import egress, filters
from prorl_mq.rules.memory import ADMIT_SHARE, GROUP_BYTES, INTAKE_SHARE, room, unacked_limit
from prorl_mq.rules.quotas import why_tenant_full
from prorl_mq.schema import task_schema
from prorl_mq.schema.codec import encode
from prorl_mq.schema.dapo import Reservoir
from prorl_mq.schema.ids import BatchRef, RunRef, batch_ref, group_ref, pool_ref, public, run_ref, tenant_of
from prorl_mq.schema.items import GroupSpec, NewBatch, NewGroup
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, GroupRequest, Task
from prorl_mq.service.images import taking
from prorl_mq.store import batches, families, run_settings, runs
from prorl_mq.store.batches import DrawPlan
from prorl_mq.store.payloads.images import names
from prorl_mq.store.server import fitness
from prorl_mq.store.store import Store

CALL_GROUPS = 128  # 1 to 2 ms of Redis
CALL_BYTES = 4 << 20
BLOB_BYTES = 16 << 20  # the largest payload of one group


class SentWith(NamedTuple):
    """Facts of a submission that are no part of the batch: a repeat of it may have others."""

    trace: str | None = None
    direct: bool = False  # the trainer speaks to Redis alone

    def added_to(self, spec: GroupSpec) -> GroupSpec:
        return msgspec.structs.replace(spec, trace=self.trace, direct=self.direct)


async def accept(
    store: Store, tenant: str, request: BatchRequest, *, trace: str | None = None, direct: bool = False
) -> BatchAccepted:
    """Stores a batch, on the server's disk if the store says so. `direct`: it came over Redis.

    A repeat of a whole batch takes no room, and is answered where new work is refused: its trainer may have to hear of
    it before it reads and acknowledges the results that take the room.

    Raises `Conflict`, `OverQuota`, `UnknownDataSource`, `InvalidBatch`, `InvalidTask`, `PayloadUnwritten` or
    `RedisUnavailable`.
    """
    _check(request)
    sent_with = SentWith(trace, direct)
    run = run_ref(tenant, request.run_id)
    sources = (group.task.data_source for group in request.groups)
    (full, unbounded), known = await asyncio.gather(_standing(store, run), families.load(store, sources))
    if full is not None and not await batches.exists(store, batch_ref(run, request.batch_id)):
        raise full
    taken = await taking.named(request, known, direct=direct)
    request = taken.request
    if taken.images and full is None and not await batches.exists(store, batch_ref(run, request.batch_id)):
        await taking.check_seen(store, pool_ref(tenant, request.pool))
    groups = [
        new_group(request, tenant, place, group, known[group.task.data_source], sent_with)
        for place, group in enumerate(request.groups)
    ]
    _unique(group.ref for group in groups)
    batch = _new_batch(request, tenant, groups)
    stored_by = await batches.server(store) if store.synced else b""
    if full is None:
        await taking.put(store, tenant, taken)
        # What took its time may have been overtaken by a quota, which admission alone counts.
        statuses = await _store(store, request, batch, groups, unbounded=unbounded and not taken.images)
    else:
        statuses = await _stored(store, request, batch, groups, full=full)
        await taking.put(store, tenant, taken)
    if store.synced:
        await batches.sync(store, batch.ref, stored_by=stored_by)
    return BatchAccepted(
        run_id=request.run_id,
        batch_id=request.batch_id,
        groups=[public(group.ref) for group in groups],
        jobs=batch.jobs,
        repeated=all(status == "already" for status in statuses),
    )


def _check(request: BatchRequest) -> None:
    """Raises `InvalidBatch` for what contradicts itself."""
    name, dapo = f"batch {request.batch_id!r}", request.dapo
    if dapo is not None and request.prompts:
        raise InvalidBatch(f"{name} is a DAPO batch and prompts for others at once: submit two batches")
    if not request.groups and (dapo is None or dapo.reservoir is not Reservoir.RUN):
        raise InvalidBatch(f"{name} has no groups: only a DAPO batch with the run's reservoir needs none")
    for place, group in enumerate(request.groups):
        if group.accept not in {None, "all", group.n}:
            raise InvalidBatch(
                f"group {group_name(request, place)!r}: accept={group.accept} of n={group.n} was removed, because it "
                "favoured short samples; leave it out, and to wait for no slow group submit more groups than "
                "dapo.target_groups"
            )
    if dapo is None:
        return
    filters.check(dapo)
    if dapo.early_drop:
        raise InvalidBatch(
            f"{name}: early_drop={dapo.early_drop} was removed, because it dropped groups that would have passed; "
            "leave it out, and set with dapo.oversample how many groups run at once"
        )


def group_name(request: BatchRequest, place: int) -> str:
    """The name of a batch's group."""
    return request.groups[place].group_id or f"{request.batch_id}-{place}"


def _new_batch(request: BatchRequest, tenant: str, groups: Sequence[NewGroup]) -> NewBatch:
    run = run_ref(tenant, request.run_id)
    ref, dapo, plan = batch_ref(run, request.batch_id), request.dapo, b""
    waits_in: BatchRef | RunRef | None = None
    if dapo is not None:
        pool = pool_ref(tenant, request.pool)
        current = msgspec.structs.replace(dapo, early_drop=None)
        plan = encode(DrawPlan(dapo=current, pool=pool, max_staleness=request.max_staleness))
        waits_in = ref
    elif request.prompts:
        waits_in = run
    parts = [plan or b"prompts"] if waits_in else []
    digest = digest_of(*(group.digest.encode() for group in groups), *parts)
    jobs, target = sum(group.n for group in groups), dapo.target_groups if dapo else 0
    return NewBatch(
        run, ref, digest, len(groups), jobs, request.purpose, request.priority, waits_in=waits_in, plan=plan,
        target=target,
    )  # fmt: skip


def _egress(task: Task) -> Sequence[str]:
    """Raises `InvalidTask`. Whether the hosts may be listed at all is the workers' operator's to say."""
    try:
        return [str(egress.target(each)) for each in task.egress]
    except ValueError as error:
        raise InvalidTask(f"task {task.task_id!r}: egress: {error}") from None


def new_group(
    request: BatchRequest, tenant: str, place: int, group: GroupRequest, schema: task_schema.Schema, sent_with: SentWith
) -> NewGroup:
    """A group as it is stored. Raises `InvalidTask`."""
    opened, sealed = task_schema.split(schema, group.task)
    spec = GroupSpec(
        batch=request.batch_id,
        task_id=group.task.task_id,
        data_source=group.task.data_source,
        payload=opened,
        n=group.n,
        max_refills=group.n if group.max_refills is None else group.max_refills,
        sampling=request.sampling,
        limits=request.limits,
        pool=pool_ref(tenant, request.pool),
        tools=request.tools,
        egress=_egress(group.task),
        purpose=request.purpose,
        priority=request.priority,
        max_staleness=request.max_staleness,
    )
    asked, sealed_bytes = encode(spec), encode(sealed) if sealed else b""
    limits = task_schema.limits_for(schema, request.limits)  # no part of the digest: another release may give others
    if limits is request.limits and not any(sent_with):
        open_bytes = asked
    else:
        open_bytes = encode(sent_with.added_to(msgspec.structs.replace(spec, limits=limits)))
    if len(open_bytes) + len(sealed_bytes) > BLOB_BYTES:
        size = (len(open_bytes) + len(sealed_bytes)) >> 20
        raise InvalidTask(f"task {group.task.task_id!r} has {size} MiB; {BLOB_BYTES >> 20} MiB are allowed")
    return NewGroup(
        group_ref(run_ref(tenant, request.run_id), group_name(request, place)),
        digest_of(asked, sealed_bytes),
        group.n,
        limits.total_ms,
        open_bytes,
        sealed_bytes,
        spec.data_source,
        " ".join(names(opened)),
    )


def digest_of(*parts: bytes) -> str:
    """The digest that tells two bodies under one name apart."""
    told = bytearray()
    for part in parts:
        told += len(part).to_bytes(8)
        told += part
    return hashlib.blake2b(told, digest_size=16).hexdigest()


def _unique(refs: Iterable[str]) -> None:
    seen: set[str] = set()
    for ref in refs:
        if ref in seen:
            raise InvalidTask(f"the group id {ref.rpartition(':')[2]!r} stands twice in this batch")
        seen.add(ref)


def _chunks(groups: Sequence[NewGroup]) -> Iterable[list[NewGroup]]:
    chunk: list[NewGroup] = []
    size = 0
    for group in groups:
        bytes_here = len(group.open) + len(group.sealed)
        if chunk and (len(chunk) == CALL_GROUPS or size + bytes_here > CALL_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(group)
        size += bytes_here
    yield chunk


async def _store(
    store: Store, request: BatchRequest, batch: NewBatch, groups: Sequence[NewGroup], *, unbounded: bool
) -> list[str]:
    """Stores a batch in one step, or in parts of which the first is stored when all of them may be."""
    chunks, statuses = list(_chunks(groups)), list[str]()
    if len(chunks) > 1:
        foreseen = await batches.foreseen(store, batch, groups)
        _refuse(request, groups, foreseen)
        await _room_for(store, batch, [group for group, word in zip(groups, foreseen, strict=True) if word == "stored"])
    for chunk in chunks:
        try:
            answer = await store.submit(batch, chunk, unbounded=unbounded)
            _refuse(request, chunk, answer)
        except (Conflict, OverQuota) as error:
            if statuses:
                raise _in_part(error, batch, len(statuses)) from None
            raise
        statuses += answer
    return statuses


def _in_part(error: Conflict | OverQuota, batch: NewBatch, stored: int) -> Conflict | OverQuota:
    """The same error, with what became of the parts before."""
    name = public(batch.ref)
    said = f"{stored} of the {batch.groups} groups of batch {name!r} are stored and run; the others are not: {error}"
    if isinstance(error, OverQuota):
        again = f"{said}, and submit the same batch again: what is stored stays"
        return OverQuota(again, retry_after_ms=error.retry_after_ms)
    return Conflict(f"{said}; `prorl-mq cancel batch {name}` ends those")


async def _room_for(store: Store, batch: NewBatch, groups: Sequence[NewGroup]) -> None:
    """Raises `OverQuota` where no group would begin any more with all of them in Redis."""
    size = sum(len(group.open) + len(group.sealed) + GROUP_BYTES for group in groups)
    free = room(await fitness.memory(store), 0)
    if free is not None and size > free:
        raise OverQuota(
            f"batch {public(batch.ref)!r} takes {size >> 20} MiB and Redis has {max(0, free) >> 20} MiB for it, up to "
            f"{ADMIT_SHARE:.0%} of its memory: acknowledge results, give it more memory, or submit smaller batches",
            retry_after_ms=2000,
        )


def _refuse(request: BatchRequest, chunk: Sequence[NewGroup], answer: Sequence[str]) -> None:
    if "ended" in answer:
        raise Conflict(f"batch {request.batch_id!r} of run {request.run_id!r} has ended and takes no more groups")
    if "conflict" not in answer:
        return
    if not chunk or len(answer) < len(chunk) or (len(chunk) == 1 and len(request.groups) == 1):
        raise Conflict(f"batch {request.batch_id!r} of run {request.run_id!r} was submitted before with another body")
    group = public(chunk[answer.index("conflict")].ref)
    raise Conflict(f"group {group!r} exists with another body; give the new one another group_id")


async def _stored(
    store: Store, request: BatchRequest, batch: NewBatch, groups: Sequence[NewGroup], *, full: OverQuota
) -> list[str]:
    """The answer to a batch of which all is there. Raises `full` for another one."""
    statuses = await batches.foreseen(store, batch, groups)
    _refuse(request, groups, statuses)
    if "stored" in statuses:
        raise full
    return statuses


async def why_full(store: Store, run: RunRef) -> OverQuota | None:
    """Why the run may have no new work now."""
    return (await _standing(store, run)).full


class _Standing(NamedTuple):
    """Why a run may have no new work now, and whether no quota counts its jobs and groups."""

    full: OverQuota | None
    unbounded: bool


async def _standing(store: Store, run: RunRef) -> _Standing:
    now, held, settings, tenants, leaving = await asyncio.gather(
        fitness.memory(store),
        runs.unacked_bytes(store, run),
        run_settings.of_run(store, run),
        run_settings.of_tenant(store, tenant_of(run)),
        runs.is_leaving(store, run),
    )
    unbounded = not leaving and (settings.max_jobs, settings.max_unacked_groups, tenants.max_jobs) == (None, None, None)
    most = tenants.max_unacked_bytes
    if now.share > INTAKE_SHARE:
        why = (
            f"Redis uses {now.share:.0%} of its memory and takes new work below {INTAKE_SHARE:.0%}: "
            "acknowledge results, or give it more memory"
        )
        return _Standing(OverQuota(why, retry_after_ms=2000), unbounded)
    if held > unacked_limit(settings, now):
        why = f"run {public(run)!r} has {held >> 20} MiB of results that nobody has acknowledged: acknowledge them"
        return _Standing(OverQuota(why, retry_after_ms=5000), unbounded)
    if most is not None and (held := await runs.tenant_bytes(store, tenant_of(run))) > most:
        return _Standing(OverQuota(why_tenant_full(held, most), retry_after_ms=5000), unbounded)
    return _Standing(None, unbounded)
