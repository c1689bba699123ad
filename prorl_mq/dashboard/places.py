"""The commands that put records where RQ looks for them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from prorl_mq import __version__
from prorl_mq.dashboard import rq_format as rq
from prorl_mq.dashboard.visits import LIVE, Status
from prorl_mq.schema.messages import Stage
from prorl_mq.store.store import batched
from prorl_mq.store.workers import WorkerStatus

KEPT: Final = 2_000  # ended records in each registry, the newest; rq-dashboard reads every row before a page's first
SHOWN: Final = 5_000  # live ones in each list
WINDOW_S: Final = 24 * 3600  # for how long an ended record is kept
ENDED: Final = (Status.FINISHED, Status.FAILED, Status.CANCELED)
_LONGEST: Final = 1_000  # names in one command: Lua passes some thousands at most
Command = Sequence[str]


class Record(NamedTuple):
    """One record as it is to be; `fields` None: it is to go."""

    id: str
    stage: Stage
    status: Status
    at_ms: int  # what its list is ordered by
    fields: rq.Hash | None
    result: rq.Hash | None = None


class Ended(NamedTuple):
    """Work of one worker since the last batch."""

    finished: int = 0
    failed: int = 0
    seconds: float = 0.0


def newest(records: Sequence[Record]) -> list[Record]:
    """Drops the content of records that would leave their registry at once: they are not written at all."""
    counts: dict[tuple[Stage, Status], int] = {}
    found = []
    for record in sorted(records, key=lambda each: each.at_ms, reverse=True):
        place = record.stage, record.status
        counts[place] = counts.get(place, 0) + 1
        late = record.status in ENDED and counts[place] > KEPT
        found.append(record._replace(fields=None, result=None) if late else record)
    return found


def placed(records: Sequence[Record]) -> list[Command]:
    """Writes records, takes them out of wherever they are named, and names each in its one place."""
    commands = [command for record in records if record.fields is not None for command in _hash(record)]
    commands += removed(
        [rq.job_key(record.id) for record in records if record.fields is None]
        + [rq.results_key(record.id) for record in records if record.result is None]
    )
    live = [record.id for record in records if record.fields is not None and record.status in LIVE]
    over = [record.id for record in records if record.fields is None or record.status not in LIVE]
    commands += [(verb, rq.LIVE, *ids) for verb, ids in (("SADD", live), ("SREM", over)) if ids]
    for stage in Stage:
        mine = [record for record in records if record.stage is stage]
        commands += [command for status in rq.REGISTRIES if mine for command in _registered(stage, status, mine)]
    return commands


def listed(stage: Stage, status: Status, ids: Mapping[str, int]) -> list[Command]:
    """Rewrites a list of what is live, with those that came first. `ids`: record → ms."""
    first = sorted(ids.items(), key=lambda each: each[1])[:SHOWN]
    if status is Status.QUEUED:
        key = rq.queue_key(stage)
        filled = [("RPUSH", key, *(record for record, _ in chunk)) for chunk in batched(first, _LONGEST)]
    else:
        key = rq.registry_key(status, stage)
        filled = [("ZADD", key, *_scored(status, chunk)) for chunk in batched(first, _LONGEST)]
    return [("UNLINK", key), *filled]


def removed(keys: Iterable[str]) -> list[Command]:
    return [("UNLINK", *chunk) for chunk in batched(keys, _LONGEST)]


def forgotten(stage: Stage, status: Status, ids: Sequence[str]) -> list[Command]:
    """Takes ended records out of their registry, and away."""
    keys = [*map(rq.job_key, ids), *map(rq.results_key, ids)]
    gone = [("ZREM", rq.registry_key(status, stage), *chunk) for chunk in batched(ids, _LONGEST)]
    return [*gone, *removed(keys)]


def counted(worker: str, ended: Ended) -> list[Command]:
    key = rq.worker_key(worker)
    return [
        ("HINCRBY", key, "successful_job_count", str(ended.finished)),
        ("HINCRBY", key, "failed_job_count", str(ended.failed)),
        ("HINCRBYFLOAT", key, "total_working_time", str(ended.seconds)),
        ("EXPIRE", key, str(rq.WORKER_TTL_S)),
    ]


def registered(worker: WorkerStatus, current: str | None, now_ms: int) -> list[Command]:
    """A living worker, and the record of a job that it has."""
    key, ttl_s = rq.worker_key(worker.name), str(rq.WORKER_TTL_S)
    held = rq.executions_key(key)
    commands: list[Command] = [
        ("HSET", key, *_flat(rq.worker_hash(worker, current, now_ms, __version__))),
        ("EXPIRE", key, ttl_s),
        ("SADD", rq.WORKERS, key),
        ("DEL", held),
    ]
    if current is not None:
        execution = rq.execution_key(current)
        commands += [
            ("HSET", execution, *_flat(rq.execution_hash(current, worker.name, now_ms))),
            ("EXPIRE", execution, ttl_s),
            ("SADD", held, rq.member(current, Status.STARTED)),
            ("EXPIRE", held, ttl_s),
        ]
    return commands


def _registered(stage: Stage, status: Status, records: Sequence[Record]) -> list[Command]:
    key, commands = rq.registry_key(status, stage), list[Command]()
    here = [record for record in records if record.fields is not None and record.status is status]
    away = [record.id for record in records if record.fields is None or record.status is not status]
    if away:
        commands.append(("ZREM", key, *rq.members(away, status)))
        if status is Status.STARTED:  # rq's reader passes over executions that have no hash
            commands.append(("UNLINK", *map(rq.execution_key, away)))
    if here:
        commands.append(("ZADD", key, *_scored(status, [(record.id, record.at_ms) for record in here])))
    return commands


def _scored(status: Status, ids: Iterable[tuple[str, int]]) -> Iterable[str]:
    """Ended records are ordered by when they leave, as in RQ; live ones by when they came."""
    later_s = WINDOW_S if status in ENDED else 0
    return chain.from_iterable((str(at_ms / 1000 + later_s), rq.member(record, status)) for record, at_ms in ids)


def _hash(record: Record) -> list[Command]:
    assert record.fields is not None
    commands: list[Command] = [("HSET", rq.job_key(record.id), *_flat(record.fields))]
    if record.result is not None:
        key = rq.results_key(record.id)
        commands += [("UNLINK", key), ("XADD", key, f"{max(1, record.at_ms)}-0", *_flat(record.result))]
    return commands


def _flat(fields: Mapping[str, str]) -> Iterable[str]:
    return chain.from_iterable(fields.items())
