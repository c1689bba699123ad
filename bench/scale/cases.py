"""The cases: each fills an empty server, changes a little, and measures the turn that follows."""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from bench.redis_server import RedisServer
from bench.scale import filling
from bench.scale.figures import Cost, cost
from prorl_mq.duties.admit import Admission
from prorl_mq.duties.draw import Replenishing
from prorl_mq.duties.reap import Reaping
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.duties.settle import Settling
from prorl_mq.duties.sweep import Janitor
from prorl_mq.schema.dapo import Surplus
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.messages import Stage
from prorl_mq.service import cancel
from prorl_mq.store import results
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.store import ADMIT, Store

LEASE_MS: Final = 15_000
KEYS: Final = Keys("bench")
Case = Callable[[RedisServer, Store, int], Awaitable[Cost]]


async def admit_idle(server: RedisServer, store: Store, size: int) -> Cost:
    """One group comes to one of `size` runs."""
    [first, *_] = await filling.runs(store, size)
    numbers = itertools.count()
    admission = Admission(store)
    await filling.batch(store, first, "first", 1)
    await admission.turn()
    return await cost(server, admission.turn, before=lambda: filling.batch(store, first, f"b{next(numbers)}", 1))


async def admit_waiting(server: RedisServer, store: Store, size: int) -> Cost:
    """Each of `size` runs has ten groups of eight waiting, and there is room for two."""
    for run in await filling.runs(store, size):
        await filling.batch(store, run, "b", 10, n=8)
    admission = Admission(store)
    await admission.turn()

    async def room() -> None:
        await filling.send(store, [("XTRIM", KEYS.stage(Stage.INIT), "MAXLEN", 0)])

    return await cost(server, admission.turn, before=room)


async def admit_large(server: RedisServer, store: Store, size: int) -> Cost:
    """32 groups of `size` samples are admitted in one call."""
    [run] = await filling.runs(store, 1)
    await filling.batch(store, run, "b", 32, n=size)
    await store.hold(ADMIT, lease_ms=60_000)
    groups = [Wanted(GroupRef(f"{run}:b-{at}"), 0, size, 1_000_000) for at in range(32)]
    return await cost(server, lambda: store.admit(run, groups), turns=1)


async def sweep(server: RedisServer, store: Store, size: int) -> Cost:
    """`size` runs hold ten results of 20 kB each, which nobody has acknowledged."""
    for run in await filling.runs(store, size):
        await filling.results(store, run, 10, 20_000)
    janitor = Janitor(store, lease_ms=LEASE_MS)
    await janitor.turn()
    return await cost(server, janitor.turn)


async def reap_workers(server: RedisServer, store: Store, size: int) -> Cost:
    """`size` workers live, on a quarter as many nodes with a lane each."""
    await filling.workers(store, size, stage=Stage.RUN)
    reaping = Reaping(store, ServiceClock(store, lease_ms=LEASE_MS), lease_ms=LEASE_MS)
    await reaping.turn()
    return await cost(server, reaping.turn)


async def reap_leases(server: RedisServer, store: Store, size: int) -> Cost:
    """`size` jobs are leased."""
    await filling.leases(store, size)
    reaping = Reaping(store, ServiceClock(store, lease_ms=LEASE_MS), lease_ms=LEASE_MS)
    while await reaping.turn() == 0:
        pass
    return await cost(server, reaping.turn)


async def find_unclaimed(server: RedisServer, store: Store, size: int) -> Cost:
    """`size` jobs are leased, and 100 were read and not claimed: all turns of a new process until they are found."""
    await filling.leases(store, size)
    await filling.unclaimed(store, 100)
    waited_s = 0.0

    async def find() -> None:
        nonlocal waited_s
        reaping = Reaping(store, ServiceClock(store, lease_ms=LEASE_MS), lease_ms=LEASE_MS)
        last = KEYS.job(JobRef("t0:r0:lost-99:0"))
        while await store.read("HGET", last, "owner") == b"w":
            waited_s += await reaping.turn()

    found = await cost(server, find, turns=1)
    return found._replace(wall_ms=found.wall_ms + 1000 * waited_s)  # what the duty waits between its turns


async def draw_batches(server: RedisServer, store: Store, size: int) -> Cost:
    """One of `size` open DAPO batches of ten groups has changed."""
    for run in await filling.runs(store, size):
        await filling.sampled(store, run, "b", 10, Surplus.CARRY)
    return await _draw(server, store, "t0:r0:b")


async def draw_ordered(server: RedisServer, store: Store, size: int) -> Cost:
    """An ordered batch with `size` groups in play has changed."""
    [run] = await filling.runs(store, 1)
    await filling.sampled(store, run, "b", size, Surplus.ORDERED)
    return await _draw(server, store, "t0:r0:b")


async def _draw(server: RedisServer, store: Store, batch: str) -> Cost:
    drawing = Replenishing(store)

    async def ring() -> None:
        kind = "ZADD" if "changed" in KEYS.draw_bell else "LPUSH"  # an older release has a list
        await filling.send(store, [(kind, KEYS.draw_bell, *((0,) if kind == "ZADD" else ()), batch)])

    for _ in range(2):
        await ring()
        await drawing.turn()
    return await cost(server, drawing.turn, before=ring)


async def cancel_batch(server: RedisServer, store: Store, size: int) -> Cost:
    """A batch of ten groups is cancelled in a run where `size` groups wait."""
    [run] = await filling.runs(store, 1)
    await filling.batch(store, run, "many", size)
    ref = await filling.batch(store, run, "few", 10)
    return await cost(server, lambda: cancel.cancel(store, "batch", ref), turns=1)


async def withdraw(server: RedisServer, store: Store, size: int) -> Cost:
    """A batch of `size` groups is cancelled."""
    [run] = await filling.runs(store, 1)
    ref = await filling.batch(store, run, "b", size)
    return await cost(server, lambda: cancel.cancel(store, "batch", ref), turns=1)


async def halt(server: RedisServer, store: Store, size: int) -> Cost:
    """A batch with `size` groups in play reaches its target; all of them become its run's carry-over."""
    [run] = await filling.runs(store, 1)
    ref = await filling.sampled(store, run, "b", size, Surplus.CARRY)
    return await cost(server, lambda: store.halt(ref, "target", carry=True, keep_ms=filling.HOUR_MS), turns=1)


async def settle(server: RedisServer, store: Store, size: int) -> Cost:
    """32 groups of `size` samples are due."""
    await _due(store, size)
    return await cost(server, lambda: _settle(store), turns=1)


async def ack(server: RedisServer, store: Store, size: int) -> Cost:
    """Results of 32 groups of `size` samples are acknowledged at once."""
    run = await _due(store, size)
    await _settle(store)
    found = await results.collect(store, run)
    return await cost(server, lambda: results.acknowledge(store, run, [each.cursor for each in found]), turns=1)


async def _due(store: Store, n: int) -> RunRef:
    """32 groups whose samples have all ended."""
    [run] = await filling.runs(store, 1)
    ref = await filling.batch(store, run, "b", 32, n=n)
    await store.hold(ADMIT, lease_ms=60_000)
    for at in range(32):
        await store.admit(run, [Wanted(GroupRef(f"{run}:b-{at}"), 0, n, 1_000_000)])
    await cancel.cancel(store, "batch", ref)
    return run


async def _settle(store: Store) -> None:
    settling = Settling(store, linger_ms=LEASE_MS)
    while await store.read("XLEN", KEYS.due):
        await settling.turn()
    await settling.aclose()


CASES: Final[Mapping[str, tuple[Case, tuple[int, int]]]] = {
    "admission, idle runs": (admit_idle, (250, 1_000)),
    "admission, runs with 10 groups waiting": (admit_waiting, (250, 1_000)),
    "admission of 32 groups at once, samples": (admit_large, (64, 256)),
    "sweep, runs with results": (sweep, (250, 1_000)),
    "reaping, workers": (reap_workers, (1_250, 5_000)),
    "reaping, leased jobs": (reap_leases, (12_500, 50_000)),
    "finding 100 unclaimed entries, leased jobs": (find_unclaimed, (12_500, 50_000)),
    "draw, open batches": (draw_batches, (250, 1_000)),
    "draw, ordered batch, groups in play": (draw_ordered, (250, 1_000)),
    "cancel of a batch of 10, groups waiting": (cancel_batch, (25_000, 100_000)),
    "withdrawal of a batch, groups": (withdraw, (256, 1_024)),
    "halt with carry, groups in play": (halt, (2_500, 10_000)),
    "settlement of 32 groups, samples": (settle, (64, 256)),
    "acknowledgement of 32 groups, samples": (ack, (64, 256)),
}
GROWING: Final = frozenset({admit_large, find_unclaimed, withdraw, settle, ack})  # their size is the work itself
