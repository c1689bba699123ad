"""RQ's records in a database of their own: written in batches, kept within a window.

Hashes are written first, in plain pipelines: a repeat does no harm, and no list names a record without its hash. What
names them follows in one transaction, with the cursor: so a crash leaves what the cursor says, and the rest of the
batch is written again.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from prorl_mq import __version__
from prorl_mq.broker import batched
from prorl_mq.connection import RedisSettings, ask, cancellable, connect
from prorl_mq.dashboard import rq_format as rq
from prorl_mq.dashboard.visits import Status
from prorl_mq.errors import ConfigurationError
from prorl_mq.messages import Stage
from prorl_mq.workers_seen import WorkerStatus

KEPT: Final = 2_000  # ended records in each registry, the newest; rq-dashboard reads every row before a page's first
SHOWN: Final = 5_000  # live ones in each list
ANSWER_S: Final = 30.0
WINDOW_S: Final = 24 * 3600  # for how long an ended record is kept
_ENDED: Final = (Status.FINISHED, Status.FAILED, Status.CANCELED)
_SLICE: Final = 500  # records in one pipeline
Command = tuple[Any, ...]


class Record(NamedTuple):
    """One record as it is to be; `fields` None: it is to go."""

    id: str
    stage: Stage
    status: Status
    at_ms: int  # what its list is ordered by
    fields: rq.Hash | None
    result: rq.Hash | None = None


class Ended(NamedTuple):
    """What one worker has done since the last batch."""

    finished: int = 0
    failed: int = 0
    seconds: float = 0.0


def settings_for(truth: RedisSettings, database: int, username: str | None, password: str | None) -> RedisSettings:
    """The mirror's database on the queue's server, with a user of its own where there is one."""
    address = truth.url.partition("?")[0]
    if address.startswith("unix://"):
        url = f"{address}?db={database}"
    else:
        scheme, _, rest = address.partition("://")
        url = f"{scheme}://{rest.partition('/')[0]}/{database}"
    return RedisSettings(
        url=url,
        namespace=truth.namespace,
        username=username or truth.username,
        password=password or truth.password,
        outage_ms=truth.outage_ms,
    )


def connection(settings: RedisSettings) -> "Redis":
    """For a mirror: a limit of time for each answer would cost more than the answer."""
    return connect(settings, blocking=True, connections=2)


class Mirror:
    """The only writer of RQ's records."""

    def __init__(self, redis: "Redis", namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace
        self._queued: dict[Stage, dict[str, None]] = {stage: {} for stage in Stage}  # as the lists hold them

    async def cursor(self) -> str | None:
        """How far the event stream is in it; None if it must be built. Raises `ConfigurationError`."""
        source, cursor = await ask(self._redis, "HMGET", rq.PROJECTOR, "namespace", "cursor")
        if source is not None and source.decode() != self._namespace:
            raise ConfigurationError(
                f"this database shows namespace {source.decode()!r}: give --database another number for "
                f"{self._namespace!r}"
            )
        return cursor.decode() if cursor else None

    async def begin(self) -> list[str]:
        """Takes up what an earlier process left: ids of live records."""
        for stage in Stage:
            rows = await ask(self._redis, "LRANGE", rq.queue_key(stage), 0, -1)
            self._queued[stage] = dict.fromkeys(row.decode() for row in rows)
        return [record.decode() for record in await ask(self._redis, "SMEMBERS", rq.LIVE)]

    async def clear(self) -> None:
        """Removes every record. Until a cursor is written the mirror counts as not built."""
        ids = set(await self.begin())
        lists = [rq.queue_key(stage) for stage in Stage]
        for stage in Stage:
            for status in _ENDED:
                rows = await ask(self._redis, "ZRANGE", rq.registry_key(status, stage), 0, -1)
                ids.update(row.decode() for row in rows)
            lists += [rq.registry_key(status, stage) for status in rq.REGISTRIES]
            self._queued[stage] = {}
        workers = [row.decode() for row in await ask(self._redis, "SMEMBERS", rq.WORKERS)]
        await self._transact([("UNLINK", rq.PROJECTOR, rq.LIVE, rq.WORKERS, *lists, *workers)])
        for chunk in batched(sorted(ids), _SLICE):
            await self._send([_unlink(chunk)])

    async def write(self, records: Sequence[Record], done: Mapping[str, Ended], cursor: str | None) -> None:
        """One batch. `done` is by worker."""
        kept = list(_newest(records))
        for chunk in batched((record for record in kept if record.fields), _SLICE):
            unanswered = [rq.results_key(record.id) for record in chunk if record.result is None]
            hashes = [command for record in chunk for command in _hash(record)]
            await self._send([*hashes, *([("UNLINK", *unanswered)] if unanswered else [])])
        commands = [command for stage in Stage for command in self._lists(stage, kept)]
        commands += _alive(kept)
        for worker, ended in done.items():
            commands += _counted(rq.worker_key(worker), ended)
        if cursor is not None:
            commands.append(("SADD", rq.QUEUES, *map(rq.queue_key, Stage)))
            commands.append(("HSET", rq.PROJECTOR, "namespace", self._namespace, "cursor", cursor))
        await self._transact(commands)
        gone = [record.id for record in kept if record.fields is None]
        for names in batched(gone, _SLICE):
            await self._send([_unlink(names)])

    async def trim(self, now_ms: int) -> None:
        """Keeps every registry within its window."""
        keys = [(status, stage) for stage in Stage for status in _ENDED]
        looks: list[Command] = []
        for status, stage in keys:
            key = rq.registry_key(status, stage)
            looks += [("ZRANGE", key, 0, -KEPT - 1), ("ZRANGEBYSCORE", key, "-inf", now_ms / 1000)]
        found = await self._send(looks)
        for place, (status, stage) in enumerate(keys):
            ids = sorted({row.decode() for row in (*found[2 * place], *found[2 * place + 1])})
            for chunk in batched(ids, _SLICE):
                await self._transact([("ZREM", rq.registry_key(status, stage), *chunk), _unlink(chunk)])

    async def workers(self, shown: Sequence[WorkerStatus], current: Mapping[str, str], now_ms: int) -> None:
        """The living workers; others go. `current`: worker → the record of a job that it has."""
        known = {row.decode() for row in await ask(self._redis, "SMEMBERS", rq.WORKERS)}
        commands = [command for each in shown for command in _worker(each, current.get(each.name), now_ms)]
        if gone := known - {rq.worker_key(each.name) for each in shown}:
            commands += [("SREM", rq.WORKERS, *gone), ("UNLINK", *gone, *map(rq.executions_key, gone))]
        await self._transact(commands)

    def _lists(self, stage: Stage, records: Iterable[Record]) -> list[Command]:
        """Takes the records of a stage from wherever they are named, and names each in its one place."""
        mine = [record for record in records if record.stage is stage]
        if not mine:
            return []
        commands: list[Command] = []
        for status in rq.REGISTRIES:
            key = rq.registry_key(status, stage)
            here = [record for record in mine if record.fields and record.status is status]
            away = [record.id for record in mine if record.fields is None or record.status is not status]
            if away:
                commands.append(("ZREM", key, *(rq.member(record, status) for record in away)))
            if here:
                scored = [part for record in here for part in (_score(record), rq.member(record.id, status))]
                commands.append(("ZADD", key, *scored))
            if status is Status.STARTED and away:  # rq's reader passes over executions that have no hash
                commands.append(("UNLINK", *map(rq.execution_key, away)))
            if here and status not in _ENDED:
                commands.append(("ZREMRANGEBYRANK", key, SHOWN, -1))
        return commands + self._queue(stage, mine)

    def _queue(self, stage: Stage, records: Sequence[Record]) -> list[Command]:
        """A list has no cheap way to take many out: it is written anew, if it has changed."""
        queued, before = self._queued[stage], len(self._queued[stage])
        fresh = [record for record in records if record.fields and record.status is Status.QUEUED]
        for record in records:
            queued.pop(record.id, None)
        if before == len(queued) and not fresh:
            return []
        queued.update(dict.fromkeys(record.id for record in sorted(fresh, key=lambda each: each.at_ms)))
        key = rq.queue_key(stage)
        return [("DEL", key), *([("RPUSH", key, *islice(queued, SHOWN))] if queued else [])]

    async def _send(self, commands: Sequence[Command], *, transaction: bool = False) -> list[Any]:
        """One round trip, with one time limit for all of it. Raises what the client raises."""

        async def attempt() -> list[Any]:
            pipeline = self._redis.pipeline(transaction=transaction)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute())

        if not commands:
            return []
        async with asyncio.timeout(ANSWER_S):
            return await cancellable(attempt)

    async def _transact(self, commands: Sequence[Command]) -> None:
        await self._send(commands, transaction=True)


def _newest(records: Sequence[Record]) -> Iterable[Record]:
    """What would leave its registry at once is not written at all."""
    counts: dict[tuple[Stage, Status], int] = {}
    for record in sorted(records, key=lambda each: each.at_ms, reverse=True):
        place = record.stage, record.status
        counts[place] = counts.get(place, 0) + 1
        late = record.status in _ENDED and counts[place] > KEPT
        yield record._replace(fields=None, result=None) if late else record


def _score(record: Record) -> float:
    """Ended records are ordered by when they leave, as in RQ; live ones by when they came."""
    return record.at_ms / 1000 + (WINDOW_S if record.status in _ENDED else 0)


def _hash(record: Record) -> list[Command]:
    assert record.fields is not None
    commands: list[Command] = [("HSET", rq.job_key(record.id), *_flat(record.fields))]
    if record.result is not None:
        key = rq.results_key(record.id)
        commands += [("UNLINK", key), ("XADD", key, f"{max(1, record.at_ms)}-0", *_flat(record.result))]
    return commands


def _alive(records: Sequence[Record]) -> list[Command]:
    live = [record.id for record in records if record.fields and record.status not in _ENDED]
    over = [record.id for record in records if not record.fields or record.status in _ENDED]
    return [(verb, rq.LIVE, *ids) for verb, ids in (("SADD", live), ("SREM", over)) if ids]


def _worker(worker: WorkerStatus, current: str | None, now_ms: int) -> list[Command]:
    key = rq.worker_key(worker.name)
    held = rq.executions_key(key)
    commands: list[Command] = [
        ("HSET", key, *_flat(rq.worker_hash(worker, now_ms, __version__))),
        ("EXPIRE", key, rq.WORKER_TTL_S),
        ("SADD", rq.WORKERS, key),
        ("DEL", held),
    ]
    if current is not None:
        execution = rq.execution_key(current)
        commands += [
            ("HSET", execution, *_flat(rq.execution_hash(current, worker.name, now_ms))),
            ("EXPIRE", execution, rq.WORKER_TTL_S),
            ("SADD", held, rq.member(current, Status.STARTED)),
            ("EXPIRE", held, rq.WORKER_TTL_S),
        ]
    return commands


def _counted(key: str, ended: Ended) -> list[Command]:
    return [
        ("HINCRBY", key, "successful_job_count", ended.finished),
        ("HINCRBY", key, "failed_job_count", ended.failed),
        ("HINCRBYFLOAT", key, "total_working_time", ended.seconds),
        ("EXPIRE", key, rq.WORKER_TTL_S),
    ]


def _unlink(ids: Sequence[str]) -> Command:
    return ("UNLINK", *(rq.job_key(record) for record in ids), *(rq.results_key(record) for record in ids))


def _flat(fields: Mapping[str, str]) -> list[str]:
    return list(chain.from_iterable(fields.items()))
