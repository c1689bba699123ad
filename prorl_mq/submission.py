"""Accepting a batch: tasks are checked and split, and every group is in Redis before the answer."""

import hashlib
from collections.abc import Iterable, Sequence

from prorl_mq import checks, run_settings, task_schema
from prorl_mq.broker import Broker
from prorl_mq.clock import monotonic
from prorl_mq.codec import encode
from prorl_mq.connection import patiently
from prorl_mq.errors import Conflict, InvalidTask, OverQuota
from prorl_mq.ids import RunRef, batch_ref, group_ref, pool_ref, public, run_ref
from prorl_mq.messages import BatchAccepted, BatchRequest, GroupRequest
from prorl_mq.moves import GroupSpec, NewBatch, NewGroup

CALL_GROUPS = 64
CALL_BYTES = 4 << 20
BLOB_BYTES = 16 << 20  # the largest payload of one group
INTAKE_PRESSURE = 0.70  # of maxmemory: above it new work is refused, so that running work can complete


async def accept(broker: Broker, tenant: str, request: BatchRequest) -> BatchAccepted:
    """Stores a batch. Raises `Conflict`, `OverQuota`, `UnknownDataSource` or `InvalidTask`; then nothing runs."""
    run = run_ref(tenant, request.run_id)
    await _room(broker, run)
    schemas = await patiently(
        lambda: task_schema.load(broker.redis, broker.keys, (group.task.data_source for group in request.groups)),
        outage_ms=broker.outage_ms,
    )
    ref = batch_ref(run, request.batch_id)
    groups = [
        _new_group(request, tenant, place, group, schemas[group.task.data_source])
        for place, group in enumerate(request.groups)
    ]
    _unique(group.ref for group in groups)
    digest = _digest(*(group.digest.encode() for group in groups))
    jobs = sum(group.n for group in groups)
    batch = NewBatch(run, ref, digest, len(groups), jobs, request.purpose, request.priority)
    statuses: list[str] = []
    for chunk in _chunks(groups):
        answer = await broker.submit(batch, chunk)
        _refuse(request, chunk, answer)
        statuses += answer
    return BatchAccepted(
        run_id=request.run_id,
        batch_id=request.batch_id,
        groups=[public(group.ref) for group in groups],
        jobs=jobs,
        repeated=all(status == "already" for status in statuses),
    )


def _new_group(
    request: BatchRequest, tenant: str, place: int, group: GroupRequest, schema: task_schema.Schema
) -> NewGroup:
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
        purpose=request.purpose,
        priority=request.priority,
        max_staleness=request.max_staleness,
        staleness_at_turns=request.staleness_at_turns,
    )
    open_bytes, sealed_bytes = encode(spec), encode(sealed) if sealed else b""
    if len(open_bytes) + len(sealed_bytes) > BLOB_BYTES:
        size = (len(open_bytes) + len(sealed_bytes)) >> 20
        raise InvalidTask(f"task {group.task.task_id!r} has {size} MiB; {BLOB_BYTES >> 20} MiB are allowed")
    name = group.group_id or f"{request.batch_id}-{place}"
    return NewGroup(
        group_ref(run_ref(tenant, request.run_id), name),
        _digest(open_bytes, sealed_bytes),
        group.n,
        request.limits.total_ms,
        open_bytes,
        sealed_bytes,
    )


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


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


def _refuse(request: BatchRequest, chunk: Sequence[NewGroup], answer: Sequence[str]) -> None:
    if "conflict" not in answer:
        return
    if len(answer) < len(chunk) or (len(chunk) == 1 and len(request.groups) == 1):
        raise Conflict(f"batch {request.batch_id!r} of run {request.run_id!r} was submitted before with another body")
    group = public(chunk[answer.index("conflict")].ref)
    raise Conflict(f"group {group!r} exists with another body; give the new one another group_id")


class _Pressure:
    """The last look at the server's memory, shared by the submissions of a process."""

    share = 0.0
    until = 0.0


async def _room(broker: Broker, run: RunRef) -> None:
    if monotonic() > _Pressure.until:
        _Pressure.share = await patiently(lambda: checks.pressure(broker.redis), outage_ms=broker.outage_ms)
        _Pressure.until = monotonic() + 0.25
    if _Pressure.share > INTAKE_PRESSURE:
        raise OverQuota(
            f"Redis uses {_Pressure.share:.0%} of its memory and takes new work below {INTAKE_PRESSURE:.0%}: "
            "acknowledge results, or give it more memory",
            retry_after_ms=2000,
        )
    held = await broker.read("HGET", broker.keys.run(run), "bytes")
    if int(held or 0) > (await run_settings.of_run(broker, run)).max_unacked_bytes:
        raise OverQuota(
            f"run {public(run)!r} has {int(held) >> 20} MiB of results that nobody has acknowledged: acknowledge them",
            retry_after_ms=5000,
        )
