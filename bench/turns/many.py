"""Many walks whose workers are killed: what is sampled twice, what differs, and which samples a trainer gets.

First walks of one length: undisturbed, then with a `kill -9` of a RUN worker every few seconds, then with all workers
of a node killed every 20 s, and how long the walks of that node stood still. Each step is written down in the sandbox,
so that one that was taken twice, or left out, costs the reward. Then walks of many lengths under the default limit of
deaths, with the log of turns and without it: who is killed too often is no sample, and those are the long ones.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.turns.displaced import standstills, table
from prorl_mq.schema.messages import BatchRequest, GroupRecord, Outcome
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service import submit
from prorl_mq.store.store import Store
from tests.support.service import acknowledge_all, gather, store_of, until
from tests.support.walk import Walker, started, told, trajectories, walks
from tests.support.world import World

STEP_S = 0.15
LONG_STEP_S = 1.0  # of walks of many lengths: several workers die under a long one
SLOTS = 24  # of each of two RUN workers
WITHIN_S = 1500
KILLED_EVERY_S = (2.0, 8.0)
LOST_EVERY_S = 20.0
LOSSES = (("lost", 0), ("lost-spare", SLOTS))  # spare slots of each worker: enough for all rollouts of the other node
PROBE_TOKENS = 100  # fewer than any walk is asked with
LENGTHS = (4, 40)  # of the walks that a trainer gets, drawn evenly
DEATHS = 3  # the default of `max_deaths`
POWER_Z = 2.8  # standard errors: two-sided 5 %, found with 80 %


class Disturbed(msgspec.Struct):
    """What was done to the workers of one batch."""

    moments: list[float] = msgspec.field(default_factory=list)  # of each kill, on the monotonic clock

    @property
    def kills(self) -> int:
        return len(self.moments)

    async def workers(self, world: World, store: Store) -> None:
        """Kills one RUN worker, then the other, at random moments while both work."""
        rng, name = random.Random(1), "run-0"
        while True:
            await alive(world, store, ("run-0", "run-1"))
            await asyncio.sleep(rng.uniform(*KILLED_EVERY_S))
            name = "run-1" if name == "run-0" else "run-0"
            world.kill(name)
            world.restart(name)
            self.moments.append(time.monotonic())

    async def nodes(self, world: World, store: Store) -> None:
        """Kills all workers of one node, then of the other. They come back once their jobs are elsewhere."""
        node = 0
        while True:
            names = [f"init-{node}", f"run-{node}"]
            await alive(world, store, ("init-0", "init-1", "run-0", "run-1"))
            await asyncio.sleep(LOST_EVERY_S - 4 * world.lease_ms / 1000)
            self.moments.append(time.monotonic())
            for name in names:
                world.kill(name)
            await asyncio.sleep(4 * world.lease_ms / 1000)
            for name in names:
                world.restart(name)
            node = 1 - node


async def alive(world: World, store: Store, names: Sequence[str]) -> None:
    """Returns once these workers have registered."""

    async def registered() -> bool:
        pids = {str(world.workers[name].pid) for name in names}
        found = await store.read("ZRANGEBYSCORE", store.keys.workers, await store.now_ms(), "+inf")
        return pids <= {name.decode().rpartition("-")[2] for name in found}

    await until(registered, within_s=120)


Disturb = Callable[[World, Store], Coroutine[Any, Any, None]]


async def played(world: World, store: Store, batch: BatchRequest, disturb: Disturb | None) -> Sequence[GroupRecord]:
    """The records of a batch."""
    await submit.accept(store, "default", batch)
    disturbing = None if disturb is None else asyncio.create_task(disturb(world, store))
    try:
        return await gather(store, None, len(batch.groups), within_s=WITHIN_S)
    finally:
        if disturbing is not None:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
            for name in ("init-0", "init-1", "run-0", "run-1"):
                if name in world.workers and world.workers[name].poll() is not None:
                    world.restart(name)


async def alike(
    world: World, store: Store, walker: Walker, name: str, size: tuple[int, int], calm: dict[str, Trajectory],
) -> None:  # fmt: skip
    """Prints a row. The first batch fills `calm`."""
    walker.backend.requests.clear()
    walker.moments.clear()
    made, began = Disturbed(), time.monotonic()
    disturb = {"undisturbed": None, "killed": made.workers, "lost": made.nodes, "lost-spare": made.nodes}[name]
    records = await played(world, store, walks(name, *size), disturb)
    seconds, found = time.monotonic() - began, await trajectories(store, records)
    calm.update({} if calm else found)
    given = Counter({asked: times for asked, times in walker.finished().items() if len(asked) > PROBE_TOKENS})
    await acknowledge_all(store)
    twice, equal = given.total() - len(given), sum(told(each) == told(calm[name]) for name, each in found.items())
    print(f"| {name} | {seconds:.0f} | {made.kills} | {given.total()} | {twice} | {equal} of {size[0]} |", flush=True)

    if name.startswith("lost"):
        print(f"the lease is {world.lease_ms / 1000:.1f} s", flush=True)
        print(table(standstills(made.moments, walker.moments, records, world.lease_ms / 1000)), flush=True)


class Accepted(msgspec.Struct):
    """The samples that a trainer gets of one batch: turns of each, by task."""

    lengths: dict[str, int]
    seconds: float
    kills: int


def lengths(count: int) -> list[int]:
    rng = random.Random(2)
    return [rng.randint(*LENGTHS) for _ in range(count)]


async def accepted(world: World, store: Store, name: str, source: str, count: int, *, disturbed: bool) -> Accepted:
    """One batch of walks of many lengths, each with the default limit of deaths, and no refill in its place."""
    plain = walks(name, count, LENGTHS[1], source)
    groups = [
        msgspec.structs.replace(
            each,
            max_refills=0,
            task=msgspec.structs.replace(each.task, payload={**each.task.payload, "steps": steps}),
        )
        for each, steps in zip(plain.groups, lengths(count), strict=True)
    ]
    limits = msgspec.structs.replace(plain.limits, max_deaths=DEATHS)
    made, began = Disturbed(), time.monotonic()
    batch = msgspec.structs.replace(plain, groups=groups, limits=limits)
    records = await played(world, store, batch, made.workers if disturbed else None)
    samples = {record.task_id: record.samples[0] for record in records}
    await acknowledge_all(store)
    whole = {task: each.turns for task, each in samples.items() if each.outcome is Outcome.COMPLETED}
    return Accepted(whole, time.monotonic() - began, made.kills)


def worth(turns: int) -> float:
    """A reward that falls with the length, as that of hard tasks does."""
    return 1.0 - turns / (LENGTHS[1] + 1)


def compared(label: str, found: Accepted, calm: Accepted) -> str:
    """A row: means of length and reward, and the distances from the undisturbed ones."""
    ours, theirs = list(found.lengths.values()), list(calm.lengths.values())
    error = (statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs)) ** 0.5
    length = statistics.fmean(ours) - statistics.fmean(theirs)
    reward = statistics.fmean(map(worth, ours)) - statistics.fmean(map(worth, theirs))
    kept = f"{len(ours)} of {len(theirs)} | {statistics.fmean(ours):.2f}"
    told = f"{length:+.2f} | {statistics.fmean(map(worth, ours)):.3f} | {reward:+.3f} | {POWER_Z * error:.2f}"
    return f"| {label} | {found.seconds:.0f} | {found.kills} | {kept} | {told} |"


@asynccontextmanager
async def service(
    kind: str, nodes: int, step_s: float = STEP_S, spare: int = 0
) -> AsyncIterator[tuple[World, Store, Walker]]:
    """One node with two RUN workers, or two with one each."""
    with tempfile.TemporaryDirectory(prefix="pq") as directory:
        world = World(Path(directory), sandbox=kind, handlers="walk,walk_again")
        try:
            async with store_of(world) as store, (walker := Walker(step_s)).backend:
                await started(world, store, walker, slots=SLOTS, spare=spare, nodes=nodes)
                yield world, store, walker
        finally:
            world.stop()


async def many(kind: str, size: tuple[int, int]) -> None:
    """Prints both tables."""
    print("| workers | seconds | kills | completions | sampled twice | equal |\n|---|--:|--:|--:|--:|--:|", flush=True)
    calm: dict[str, Trajectory] = {}
    async with service(kind, 1) as (world, store, walker):
        await alike(world, store, walker, "undisturbed", size, calm)
        await alike(world, store, walker, "killed", size, calm)
    for name, spare in LOSSES:
        async with service(kind, 2, spare=spare) as (world, store, walker):
            await alike(world, store, walker, name, size, calm)
    await lengths_kept(kind, size[0] // 5)


async def lost(kind: str, size: tuple[int, int]) -> None:
    """Prints the rows of two nodes: undisturbed, and with a node lost every 20 s, also with spare slots."""
    print("| workers | seconds | kills | completions | sampled twice | equal |\n|---|--:|--:|--:|--:|--:|", flush=True)
    calm: dict[str, Trajectory] = {}
    for name, spare in (("undisturbed", 0), *LOSSES):
        async with service(kind, 2, spare=spare) as (world, store, walker):
            await alike(world, store, walker, name, size, calm)


async def lengths_kept(kind: str, count: int) -> None:
    """Prints the second table."""
    print("| workers | seconds | kills | accepted | turns | beside | reward | beside | found with 80 % |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    async with service(kind, 1, LONG_STEP_S) as (world, store, _):
        plain = await accepted(world, store, "plain", "walk", count, disturbed=False)
        print(compared("undisturbed", plain, plain), flush=True)
        for label, source in (("killed, with the log", "walk"), ("killed, without it", "walk-again")):
            found = await accepted(world, store, source, source, count, disturbed=True)
            print(compared(label, found, plain), flush=True)
