"""One kind of fault against our service: thousands of jobs at a steady pace, faults meanwhile, and the account."""

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from bench.chaos import account, client, faults
from bench.chaos.account import Injury
from bench.chaos.client import Entry, N
from bench.chaos.faults import Kind, Scene
from bench.chaos.system import LEASE_MS, System, finished, load_average, through_proxy
from prorl_mq.cli.local.fsck import lines
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.service.fsck.look import look
from prorl_mq.store import results
from prorl_mq.store.server.connection import ask
from prorl_mq.store.store import Store
from tests.support.service import start_all, store_of, until

NAME: Final = "prorl_mq"
LEASE_S: Final = LEASE_MS // 1000
WORKERS: Final = 2  # of each stage
HEALED_S: Final = 120.0  # how long everything may take after the last fault
START_S: Final = 300.0  # of everything on a busy machine
GONE_S: Final = 30.0  # how long what belongs to the last jobs may take to go


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    system: str
    kind: str
    jobs: int
    faults: int
    lost: int
    duplicated: int
    doubled: int
    left_over: int
    recovery_median_s: float | None
    recovery_worst_s: float | None  # None: some job that ran at a fault never ended
    seconds: float
    load: float
    left: list[str] = []  # what is left over, for a look
    note: str = ""


@contextlib.asynccontextmanager
async def standing(
    *,
    small_disk: bool = False,
    proxied: bool = False,
    seed: int = 1,
    environment: Mapping[str, str] = MappingProxyType({}),
    binary: str = "",
    appendfsync: str = "always",
) -> AsyncIterator[tuple[System, Store]]:
    """A service; its processes reach Redis through a proxy if they are asked to."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        system = System(Path(name), small_disk=small_disk, binary=binary or None, appendfsync=appendfsync)
        system.env |= environment
        try:
            path = through_proxy(system, seed) if proxied else contextlib.nullcontext()
            async with path, store_of(system) as store:
                await start_all(system, store, workers=WORKERS, within_s=START_S)
                await until(system.served, within_s=START_S)
                yield system, store
        finally:
            await asyncio.to_thread(system.stop)


async def suffer(kind: Kind, system: System, store: Store, *, seed: int) -> Row:
    """Lets the prepared run pass while faults of one kind happen as often as the time allows."""
    began, redis = time.monotonic(), faults.client(system)
    await ask(redis, "CONFIG", "SET", "appendfsync", kind.appendfsync)
    try:
        system.start_trainer()
        injuries = await _injure(kind, Scene(system, random.Random(seed), store, redis))
        await finished(system, len(system.groups), within_s=HEALED_S)
        took = time.monotonic() - began
        entries = [*client.read(system.journal), *await unread(store, system.run)]
        left = await left_over(store)
    finally:
        await redis.aclose()
    return _row(kind, system, injuries, entries, left, took)


def _row(
    kind: Kind, system: System, injuries: Sequence[Injury], entries: Sequence[Entry], left: list[str], took: float
) -> Row:
    found = [mark for mark in account.marks(system.marks) if mark.job.startswith(f"{system.run}:")]
    times = account.recovery_s(found, injuries)
    ended = sorted(each for each in times if each is not None)
    return Row(
        system=NAME,
        kind=kind.name,
        jobs=len(system.groups) * N,
        faults=len(injuries),
        lost=account.lost(system.groups, entries),
        duplicated=account.duplicated(entries),
        doubled=account.doubled(found),
        left_over=len(left),
        recovery_median_s=round(ended[len(ended) // 2], 1) if ended else None,
        recovery_worst_s=round(ended[-1], 1) if ended and None not in times else None,
        seconds=round(took, 1),
        load=load_average(),
        left=left[:20],
        note=", ".join(ended_alone(system)),
    )


def ended_alone(system: System) -> list[str]:
    """Processes that a fault has ended, though it was meant for another one."""
    return [
        f"{name} ended with {process.poll()}"
        for name, process in {**system.workers, **system.apis}.items()
        if process.poll() is not None
    ]


async def _injure(kind: Kind, scene: Scene) -> list[Injury]:
    """Until nearly all groups have come; at least once."""
    injuries, groups = list[Injury](), len(scene.system.groups)
    await finished(scene.system, max(1, groups // 20), within_s=HEALED_S)
    while not injuries or scene.system.read() < 0.9 * groups:
        began = time.monotonic()
        injuries.append(Injury(began, await kind.injure(scene)))
        await asyncio.sleep(kind.rest_s * scene.random.uniform(0.7, 1.3))
        if injuries[-1].over - injuries[0].began > 10 * HEALED_S:
            break
    return injuries


async def unread(store: Store, name: str) -> list[Entry]:
    """What lies on the results still: groups that were published once more. It is acknowledged."""
    run = run_ref("default", name)
    found = await results.collect(store, run, limit=10_000)
    records = [(each.cursor, decode(each.record, GroupRecord)) for each in found]
    await results.acknowledge(store, run, [each.cursor for each in found])
    return [Entry(at=0, group=record.group_id, cursor=cursor, good=client.good(record)) for cursor, record in records]


async def left_over(store: Store) -> list[str]:
    """Violated invariants, and anything left, when all has had time to end."""
    give_up = time.monotonic() + GONE_S
    while (left := await _standing(store)) and time.monotonic() < give_up:
        await asyncio.sleep(0.2)
    return left


async def _standing(store: Store) -> list[str]:
    report = await look(store)
    return [] if report.idle and not report.violations else lines(report)
