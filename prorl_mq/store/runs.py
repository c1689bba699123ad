"""Runs: what each holds, what its settings are, what waits in its backlog, and why."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from redis.exceptions import OutOfMemoryError

from prorl_mq.errors import NotFound, RedisUnavailable
from prorl_mq.rules.bias import Losses
from prorl_mq.rules.order import purpose_of
from prorl_mq.rules.quotas import Usage, allowed, why_held
from prorl_mq.schema.ids import GroupRef, RunRef, public, run_of, tenant_of
from prorl_mq.schema.items import Lane, Wanted
from prorl_mq.schema.messages import Purpose, Stage
from prorl_mq.schema.settings import Book, RunSettings
from prorl_mq.schema.status import RunStatus
from prorl_mq.store import families, run_settings
from prorl_mq.store.core import Command, Repeat
from prorl_mq.store.families import Abilities
from prorl_mq.store.moves.away import elsewhere
from prorl_mq.store.server import fitness
from prorl_mq.store.store import Store
from prorl_mq.store.verbs.groups import ADMIT, LOSSES
from prorl_mq.store.workers import slots

Heads = dict[RunRef, dict[Purpose, list[Wanted]]]
TURN = "waits for its turn: the first stage is full, or others go first"
UPGRADE = "upgrade-"  # begins the name of who holds admission while a service goes to another release


class Unacked(NamedTuple):
    """Bytes of a run's closed groups that are not acknowledged, and of one sample's result: None before the first."""

    bytes: int
    size: int | None


class Behind(NamedTuple):
    """Groups from the middle of a backlog; `last`: none of their purpose lie behind them."""

    groups: Sequence[Wanted]
    last: bool


async def configure(store: Store, run: RunRef, settings: RunSettings) -> RunStatus:
    """Puts settings in place of what the run had. It need not have had a batch."""
    await store.configure(run, msgspec.json.encode(settings))
    return await status(store, run)


async def placed(store: Store, run: RunRef) -> str:
    """The cell that is noted for a run. Raises `NotFound`."""
    noted: bytes | None = await store.read("GET", store.keys.placed(run))
    if noted is None:
        raise NotFound(f"no cell is noted for run {public(run)!r}")
    return noted.decode()


async def status(store: Store, run: RunRef) -> RunStatus:
    """Raises `NotFound`."""
    seen, way = await store.read_many([("ZSCORE", store.keys.runs, run), ("HGET", store.keys.away(run), "way")])
    if seen is None or way is not None:
        raise NotFound(f"there is no run {public(run)!r}: submit a batch, or set its weight or quotas first")
    return (await look(store, [run]))[0]


async def of_tenant(store: Store, tenant: str) -> list[RunStatus]:
    """Every run of a tenant, by name, without those of another cell whose trainers still ask here."""
    found = [run for run in await known(store) if tenant_of(run) == tenant]
    ways = await store.read_many([("EXISTS", store.keys.away(run)) for run in found])
    return await look(store, [run for run, away in zip(found, ways, strict=True) if not away])


async def known(store: Store) -> list[RunRef]:
    """Every run that was used in the last week or holds something, by tenant and name."""
    return sorted(RunRef(run.decode()) for run in await store.read("ZRANGE", store.keys.runs, 0, -1))


async def exists(store: Store, run: RunRef) -> bool:
    """True if the run has ever had a batch, or settings, that are not forgotten yet, and is in this cell."""
    known, away = await store.read_many([("EXISTS", store.keys.run(run)), ("EXISTS", store.keys.away(run))])
    return bool(known) and not away


async def expect(store: Store, run: RunRef) -> None:
    """Raises `NotFound` if there is no such run, `RunMoved` or `RunArriving` if it is not in this cell."""
    asked = (("EXISTS", store.keys.run(run)), ("HMGET", store.keys.away(run), "way", "cell"))
    known, (way, cell) = await store.read_many(asked)
    if way:
        raise elsewhere(run, way.decode(), cell.decode())
    if not known:
        raise _unknown(run)


async def expect_seen(store: Store, run: RunRef) -> None:
    """As `expect`, for a trainer's own user of Redis, who may not read where a run is. Raises `NotFound`."""
    if not await store.read("EXISTS", store.keys.run(run)):
        raise _unknown(run)


def _unknown(run: RunRef) -> NotFound:
    return NotFound(f"there is no run {public(run)!r}: submit a batch first")


async def idle(store: Store, *, for_ms: int, after: int = 0, limit: int) -> list[RunRef]:
    """Runs unused for that long, oldest first, without the first `after` of them."""
    before = await store.now_ms() - for_ms
    found = await store.read("ZRANGEBYSCORE", store.keys.runs, "-inf", before, "LIMIT", after, limit)
    return [RunRef(run.decode()) for run in found]


async def count_left_out(store: Store, duty: str) -> None:
    """Counts that a duty has left a run out whose keys it cannot work with. A count that is lost, or refused by a full
    Redis, is lost.
    """
    with suppress(RedisUnavailable, OutOfMemoryError):
        await store.write("HINCRBY", store.keys.counters, f"left_out:{duty}", 1, repeat=Repeat.ONCE)


async def losses(store: Store, runs: Sequence[RunRef]) -> dict[RunRef, Losses]:
    """Losses of each run so far."""
    rows = await store.read_many([("HMGET", store.keys.run(run), *LOSSES) for run in runs])
    return {run: Losses(*(int(number or 0) for number in row)) for run, row in zip(runs, rows, strict=True)}


async def paused(store: Store) -> dict[RunRef, int]:
    """The runs of which nothing is admitted, each with the end of its pause, in ms."""
    return _until(await store.read("ZRANGE", store.keys.paused_runs, 0, -1, "WITHSCORES"))


async def held_back(store: Store) -> set[RunRef]:
    """The runs that are paused, and those that are to leave for another cell."""
    keys = (store.keys.paused_runs, store.keys.leaving)
    found = await store.read_many([("ZRANGE", key, 0, -1, "WITHSCORES") for key in keys])
    now_ms = await store.now_ms() if found[1] else 0
    return {*_until(found[0]), *(run for run, until in _until(found[1]).items() if until > now_ms)}


async def is_leaving(store: Store, run: RunRef) -> bool:
    """True while nothing of the run is to begin, so that it can leave for another cell."""
    until = await store.read("ZSCORE", store.keys.leaving, run)
    return until is not None and float(until) > await store.now_ms()


def _until(row: Sequence[bytes]) -> dict[RunRef, int]:
    return {RunRef(run.decode()): int(until) for run, until in zip(row[::2], row[1::2], strict=True)}


async def unacked_bytes(store: Store, run: RunRef) -> int:
    """Bytes of the run's results that are not acknowledged."""
    return int(await store.read("HGET", store.keys.run(run), "bytes") or 0)


async def ahead_of(store: Store, group: GroupRef) -> int:
    """Number of groups before one in its run's backlog; 0 if it is not in the backlog."""
    return int(await store.read("ZRANK", store.keys.backlog(run_of(group)), group) or 0)


async def heads(store: Store, most: Mapping[RunRef, int]) -> Heads:
    """The first groups of each run's backlog, up to `most` of each purpose. A run without any is left out."""
    keys, found = store.keys, list[tuple[RunRef, Purpose, GroupRef]]()
    fronts = await store.read_many(
        [("ZRANGE", keys.backlog(run), 0, count - 1, "WITHSCORES") for run, count in most.items()]
    )
    mixed: list[RunRef] = []  # evaluation stands in front: training is looked for behind it
    for run, front in zip(most, fronts, strict=True):
        scored = [(purpose_of(float(score)), ref) for ref, score in zip(front[::2], front[1::2], strict=True)]
        first = scored[0][0] if scored else Purpose.TRAIN
        found += [(run, first, GroupRef(ref.decode())) for purpose, ref in scored if purpose is first]
        if first is Purpose.EVAL:
            mixed.append(run)
    behind = await store.read_many(
        [("ZRANGEBYSCORE", keys.backlog(run), 0, "+inf", "LIMIT", 0, most[run]) for run in mixed]
    )
    for run, refs in zip(mixed, behind, strict=True):
        found += [(run, Purpose.TRAIN, GroupRef(ref.decode())) for ref in refs]
    return await _wanted(store, found)


async def behind(store: Store, run: RunRef, purpose: Purpose, *, start: int, most: int) -> Behind:
    """At most so many groups of one purpose of a run's backlog, the first `start` of them left out."""
    backlog, first = store.keys.backlog(run), start
    if purpose is Purpose.TRAIN:
        first += int(await store.read("ZCOUNT", backlog, "-inf", "(0"))
    row = await store.read("ZRANGE", backlog, first, first + most - 1, "WITHSCORES")
    scored = zip(row[::2], row[1::2], strict=True)
    refs = [GroupRef(ref.decode()) for ref, score in scored if purpose_of(float(score)) is purpose]
    found = await _wanted(store, [(run, purpose, ref) for ref in refs])
    return Behind(found.get(run, {}).get(purpose, []), len(refs) < most)


async def _wanted(store: Store, found: Sequence[tuple[RunRef, Purpose, GroupRef]]) -> Heads:
    """A group that has gone meanwhile is left out."""
    reads = [("HMGET", store.keys.group(ref), "next", "wanted", "total_ms", "family") for _, _, ref in found]
    made: Heads = {}
    for (run, purpose, ref), (first, wanted, total_ms, family) in zip(found, await store.read_many(reads), strict=True):
        if first is not None:
            group = Wanted(ref, int(first), int(wanted), int(total_ms), (family or b"").decode())
            made.setdefault(run, {}).setdefault(purpose, []).append(group)
    return made


async def held(store: Store, runs: Sequence[RunRef]) -> dict[RunRef, Unacked]:
    """Memory that closed groups of each run hold."""
    return _held(runs, await store.read_many(_ask_held(store, runs)))


def _ask_held(store: Store, runs: Sequence[RunRef]) -> list[Command]:
    return [("HMGET", store.keys.run(run), "bytes", "size") for run in runs]


def _held(runs: Sequence[RunRef], rows: Sequence[Any]) -> dict[RunRef, Unacked]:
    return {
        run: Unacked(int(count or 0), None if size is None else int(size))
        for run, (count, size) in zip(runs, rows, strict=True)
    }


async def usage(store: Store, runs: Sequence[RunRef]) -> Usage:
    """The usage that quotas count."""
    keys = store.keys
    counts = [("HGETALL", keys.in_flight), ("HGETALL", keys.unacked)]
    rows = await store.read_many([*counts, *_ask_held(store, runs)])
    (jobs, groups), found = map(_counts, rows[:2]), _held(runs, rows[2:])
    memory = await fitness.memory(store)  # after the jobs: what they have stored meanwhile is counted twice, not never
    others = [run for run in jobs if run not in found] if memory.limit else []
    sizes = {run: of.size for run, of in (found | await held(store, others)).items()}
    return Usage(
        jobs=jobs,
        groups=groups,
        bytes={run: of.bytes for run, of in found.items()},
        sizes={run: size for run, size in sizes.items() if size is not None},
        memory=memory,
    )


async def with_tenants(store: Store, book: Book, used: Usage) -> Usage:
    """The usage with what the other runs hold of tenants whose bytes have a bound."""
    others = used.unknown(book)
    return told(used, await held(store, others)) if others else used


def told(used: Usage, of_runs: Mapping[RunRef, Unacked]) -> Usage:
    """The usage with what these runs hold."""
    sizes = {run: of.size for run, of in of_runs.items() if of.size is not None}
    sizes = {run: size for run, size in used.sizes.items() if run not in of_runs} | sizes
    return replace(used, bytes=used.bytes | {run: of.bytes for run, of in of_runs.items()}, sizes=sizes)


async def tenant_bytes(store: Store, tenant: str) -> int:
    """Bytes of a tenant's results that are not acknowledged."""
    groups = _counts(await store.read("HGETALL", store.keys.unacked))
    return sum(of.bytes for of in (await held(store, [run for run in groups if tenant_of(run) == tenant])).values())


async def look(store: Store, runs: Sequence[RunRef]) -> list[RunStatus]:
    """The status of each run, in their order."""
    keys = store.keys
    book, used = await run_settings.book(store), await usage(store, runs)
    used = await with_tenants(store, book, used)
    waiting = await heads(store, dict.fromkeys(runs, 1))
    sizes = await store.read_many([("ZCARD", keys.backlog(run)) for run in runs])
    evals = await store.read_many([("ZCOUNT", keys.backlog(run), "-inf", "(0") for run in runs])
    quotas, able, held_back = allowed(book, used), await families.abilities(store), await paused(store)
    holder = (await store.read("GET", keys.duty(ADMIT)) or b"").decode().partition("\t")[0]
    upgrade = f"admission is held by {holder}: `prorl-mq upgrade` gives it back" if holder.startswith(UPGRADE) else ""
    return [
        RunStatus(
            run_id=public(run),
            settings=book.run(run),
            backlog=int(size),
            backlog_eval=int(of_eval),
            in_flight=used.jobs.get(run, 0),
            unacked_groups=used.groups.get(run, 0),
            unacked_bytes=used.bytes[run],
            paused_until_ms=held_back.get(run),
            why="it is paused: resume it"
            if run in held_back
            else _why(
                run, _flat(waiting.get(run, {})), able, partial(why_held, book, used, quotas, run), upgrade=upgrade
            ),
        )
        for run, size, of_eval in zip(runs, sizes, evals, strict=True)
    ]


def _why(
    run: RunRef, groups: Sequence[Wanted], able: Abilities, held: Callable[[Wanted], str | None], *, upgrade: str
) -> str:
    if not groups or upgrade:
        return upgrade if groups else ""
    if not slots(able.workers, Stage.INIT):
        return "no init worker is alive: start prorl-worker --stage init"
    lacking = (able.why_waits(Lane(Stage.INIT, family=group.family or None)) for group in groups)
    shut = (able.why_shut(tenant_of(run), group.family) for group in groups)
    return next((why for why in (*lacking, *shut, *map(held, groups)) if why), TURN)


def _flat(heads: Mapping[Purpose, Sequence[Wanted]]) -> list[Wanted]:
    return [group for groups in heads.values() for group in groups]


def _counts(row: Sequence[bytes]) -> dict[RunRef, int]:
    return {RunRef(run.decode()): int(count) for run, count in zip(row[::2], row[1::2], strict=True)}
