"""RQ's records in a database of their own: written in slices by one process, kept within a window.

One script call writes a slice: the records' hashes, and each one's place. The lists of what waits, the workers'
counters and the cursor come with the last one. So no list names a record without its hash, and a crash leaves what the
cursor says: the rest of the batch is written again. Whoever the mirror has been taken over from writes nothing more.
"""

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from redis.asyncio import Redis

from prorl_mq.dashboard import places
from prorl_mq.dashboard import rq_format as rq
from prorl_mq.dashboard.places import ENDED, Command, Ended, Record
from prorl_mq.dashboard.visits import LIVE, Status
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Stage
from prorl_mq.servers import in_cluster, with_database
from prorl_mq.store.scripts import Script
from prorl_mq.store.server.connection import RedisSettings, ask, ask_many
from prorl_mq.store.store import batched
from prorl_mq.store.workers import WorkerStatus

_SLICE: Final = 500  # records in one call: Redis is held up for some milliseconds
_WRITE: Final = Script("write", resources.files("prorl_mq.dashboard").joinpath("write.lua").read_text())


class TakenOver(Exception):
    """Another process writes the mirror now."""


def settings_for(
    truth: RedisSettings, database: int | str, username: str | None, password: str | None
) -> RedisSettings:
    """The mirror's database: on the queue's server by its number, or on another by its URL, with a user of its own
    where there is one. Raises `ConfigurationError` for a number where the queue lies in a cluster.
    """
    if isinstance(database, str):
        url = database
    elif in_cluster(truth.url):
        raise ConfigurationError(
            "a cluster has no other database for rq-dashboard's records: give --database redis://HOST:PORT/N of a "
            "server beside it"
        )
    else:
        url = with_database(truth.url, database)
        username, password = username or truth.username, password or truth.password
    return RedisSettings(
        url=url, namespace=truth.namespace, username=username, password=password, outage_ms=truth.outage_ms
    )


class Mirror:
    """The only writer of RQ's records, from `take_over` until another process does the same."""

    def __init__(self, redis: "Redis", namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace
        self._name = secrets.token_hex(8)
        self._live: dict[tuple[Stage, Status], dict[str, int]] = defaultdict(dict)  # record → ms, also beyond `SHOWN`
        self._changed: set[tuple[Stage, Status]] = set()
        self._cut: set[tuple[Stage, Status]] = set()  # lists that do not show all

    async def take_over(self, *, force: bool = True) -> str | None:
        """Takes the mirror over; returns the cursor that it has reached, None if it must be built.

        Raises `ConfigurationError`, and without `force` `TakenOver` if another process has it.
        """
        source = await ask(self._redis, "HGET", rq.PROJECTOR, "namespace")
        if source is not None and source.decode() != self._namespace:
            raise ConfigurationError(
                f"this database shows namespace {source.decode()!r}: give --database another number for "
                f"{self._namespace!r}"
            )
        taken = ("HSET", rq.PROJECTOR, "namespace", self._namespace, "owner", self._name)
        if force:
            await ask(self._redis, *taken)
        else:
            await self._do([taken], free=True)
        self._live.clear()
        self._changed = {(stage, status) for stage in Stage for status in LIVE}
        self._cut = set(self._changed)
        cursor = await ask(self._redis, "HGET", rq.PROJECTOR, "cursor")
        return cursor.decode() if cursor else None

    async def let_go(self) -> None:
        """Whoever stands by may take it over at once."""
        await self._do([("HDEL", rq.PROJECTOR, "owner")])

    async def sign_of_life(self) -> tuple[str, str] | None:
        """Changes while somebody writes it; None if nobody does."""
        owner, beat = await ask(self._redis, "HMGET", rq.PROJECTOR, "owner", "beat")
        return (owner.decode(), (beat or b"").decode()) if owner else None

    async def live(self) -> list[str]:
        """Ids of records that had not ended when an earlier process left them."""
        return [record.decode() for record in await ask(self._redis, "SMEMBERS", rq.LIVE)]

    async def clear(self) -> None:
        """Removes every record. Until a cursor is written the mirror counts as not built."""
        ids, lists = set(await self.live()), [rq.queue_key(stage) for stage in Stage]
        for stage in Stage:
            lists += [rq.registry_key(status, stage) for status in rq.REGISTRIES]
            for status in ENDED:
                rows = await ask(self._redis, "ZRANGE", rq.registry_key(status, stage), 0, -1)
                ids.update(row.decode() for row in rows)
        workers = [row.decode() for row in await ask(self._redis, "SMEMBERS", rq.WORKERS)]
        held = [rq.executions_key(worker) for worker in workers]
        await self._do([("HDEL", rq.PROJECTOR, "cursor")])
        await self._do(places.removed([rq.LIVE, rq.WORKERS, *lists, *workers, *held]))
        for chunk in batched(sorted(ids), _SLICE):
            keys = [*map(rq.job_key, chunk), *map(rq.results_key, chunk), *map(rq.execution_key, chunk)]
            await self._do(places.removed(keys))

    async def write(self, records: Sequence[Record], done: Mapping[str, Ended], cursor: str | None) -> None:
        """One batch. `done` is by worker. Without a cursor lists of what waits are left for later."""
        commands: list[Command] = []
        for chunk in batched(places.newest(records), _SLICE):
            await self._do(commands)
            self._remember(chunk)
            commands = places.placed(chunk)
        if cursor is not None:
            commands += self._lists()
            for worker, ended in done.items():
                commands += places.counted(worker, ended)
            commands.append(("SADD", rq.QUEUES, *map(rq.queue_key, Stage)))
            commands.append(("HSET", rq.PROJECTOR, "cursor", cursor))
        await self._do(commands)

    async def trim(self, now_ms: int) -> None:
        """Keeps every registry within its window."""
        registries = [(stage, status) for stage in Stage for status in ENDED]
        commands: list[tuple[str | float, ...]] = []
        for stage, status in registries:
            key = rq.registry_key(status, stage)
            commands.append(("ZRANGE", key, 0, -places.KEPT - 1))
            commands.append(("ZRANGEBYSCORE", key, "-inf", now_ms / 1000))
        found = await ask_many(self._redis, commands, at_once=False)
        for place, (stage, status) in enumerate(registries):
            ids = sorted({row.decode() for row in (*found[2 * place], *found[2 * place + 1])})
            for chunk in batched(ids, _SLICE):
                await self._do(places.forgotten(stage, status, chunk))

    async def workers(self, shown: Sequence[WorkerStatus], current: Mapping[str, str], now_ms: int) -> None:
        """The living workers; others go. `current`: worker → the record of a job that it has."""
        known = {row.decode() for row in await ask(self._redis, "SMEMBERS", rq.WORKERS)}
        commands: list[Command] = [("HINCRBY", rq.PROJECTOR, "beat", "1")]
        for each in shown:
            commands += places.registered(each, current.get(each.name), now_ms)
        if gone := sorted(known - {rq.worker_key(each.name) for each in shown}):
            commands += [("SREM", rq.WORKERS, *gone), ("UNLINK", *gone, *map(rq.executions_key, gone))]
        await self._do(commands)

    def _remember(self, records: Sequence[Record]) -> None:
        for record in records:
            for status in LIVE:
                if self._live[record.stage, status].pop(record.id, None) is not None:
                    self._changed.add((record.stage, status))
            if record.fields is not None and record.status in LIVE:
                self._live[record.stage, record.status][record.id] = record.at_ms
                self._changed.add((record.stage, record.status))

    def _lists(self) -> list[Command]:
        """A queue has no cheap way to take many out, and where a list is cut others move up: these are rewritten."""
        commands: list[Command] = []
        for stage, status in sorted(self._changed):
            ids, cut = self._live[stage, status], (stage, status) in self._cut
            if status is Status.QUEUED or cut or len(ids) > places.SHOWN:
                commands += places.listed(stage, status, ids)
            (self._cut.add if len(ids) > places.SHOWN else self._cut.discard)((stage, status))
        self._changed.clear()
        return commands

    async def _do(self, commands: Sequence[Command], *, free: bool = False) -> None:
        """One call: all of it, or nothing; `free`: also if nobody has the mirror.

        Raises `TakenOver`, and what the client raises.
        """
        if commands:
            told = {"owner": self._name, "free": free, "commands": commands}
            if await _WRITE(self._redis, [rq.PROJECTOR], told) != 1:
                raise TakenOver
