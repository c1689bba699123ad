"""A turn of a duty costs what has changed, not what there is. The control of each: the look at everything."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from prorl_mq.duties.admit import Admission
from prorl_mq.duties.draw import Replenishing
from prorl_mq.duties.reap import Reaping
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.duties.sweep import Janitor
from prorl_mq.schema.dapo import Surplus
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import Stage
from prorl_mq.service import cancel
from prorl_mq.store import runs, streams
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store, batched
from tests.support.queue import RUN, Queue
from tests.verbs import reserved

pytestmark = pytest.mark.anyio
MANY = 300
A_PAGE = 64
FEW = 40  # commands
FAR_MS = 1 << 50
LEASE_MS = 600_000


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    redis, waiting = connect(settings), connect(settings)
    made = Queue(redis, keys)
    made.store = Store(redis, keys, name="w1", waiting=waiting)
    await made.prepare()
    yield made
    await waiting.aclose()
    await redis.aclose()


async def commands(queue: Queue, act: Callable[[], Awaitable[Any]]) -> int:
    """How many commands Redis carries out meanwhile, those of scripts among them."""
    await queue.command("CONFIG", "RESETSTAT")
    await act()
    stats = (await queue.command("INFO", "commandstats")).decode().splitlines()
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in stats if "calls=" in line) - 1


async def workers(queue: Queue, stage: Stage, count: int) -> None:
    """Living ones, each on a node of its own."""
    for number in range(count):
        about = {"stage": stage, "node": f"n{number}", "slots": 8, "busy": 0, "pid": 1, "started_ms": 1}
        await queue.command("HSET", queue.keys.worker(f"w{number}"), *(each for pair in about.items() for each in pair))
        await queue.command("ZADD", queue.keys.workers, FAR_MS, f"w{number}")


async def known(queue: Queue, count: int) -> list[RunRef]:
    """Runs that hold nothing."""
    made = [RunRef(f"acme:r{number}") for number in range(count)]
    for run in made:
        await queue.command("ZADD", queue.keys.runs, FAR_MS, run)
    return made


async def test_admission_reads_the_runs_that_have_something_new(queue: Queue) -> None:
    await workers(queue, Stage.INIT, 1)
    every = await known(queue, MANY)
    admission = Admission(queue.store)
    await queue.submit("first")  # what its scripts are loaded with is not counted
    assert await commands(queue, admission.turn) >= MANY, "a new process looks at all of them"
    await queue.submit("second", batch="another")
    assert await commands(queue, admission.turn) <= A_PAGE + FEW
    assert await queue.command("XLEN", queue.keys.stage(Stage.INIT)) == 2
    assert await commands(queue, lambda: runs.heads(queue.store, dict.fromkeys(every, 1))) == MANY


async def test_a_sweep_looks_at_some_runs_and_at_no_result_that_it_has_seen(queue: Queue) -> None:
    for run in await known(queue, MANY):
        await queue.command("XADD", queue.keys.results(run), "*", "r", b"x" * 1_000)
    janitor = Janitor(queue.store, lease_ms=LEASE_MS)
    assert await commands(queue, janitor.turn) >= 2 * MANY, "a new process looks at all of them"
    assert await commands(queue, janitor.turn) <= A_PAGE + FEW
    assert "xrange" not in (await queue.command("INFO", "commandstats")).decode()


async def test_reaping_asks_some_of_the_workers_and_lanes(queue: Queue) -> None:
    await workers(queue, Stage.RUN, MANY)
    await queue.prepare(*(f"n{number}" for number in range(MANY)))
    reaping = reaper(queue)
    assert await commands(queue, reaping.turn) >= 2 * MANY, "a new process looks at all of them"
    assert await commands(queue, reaping.turn) <= 2 * A_PAGE + FEW


async def test_a_lane_whose_node_has_died_is_evacuated_at_once(queue: Queue) -> None:
    """Though its turn would come later."""
    await workers(queue, Stage.RUN, MANY)
    await queue.prepare(*(f"n{number}" for number in range(MANY)))
    reaping = reaper(queue)
    await reaping.turn()
    lanes = list(await streams.lanes(queue.store))
    for stream in lanes[-2:]:
        await queue.command("ZREM", queue.keys.workers, "w" + stream.rpartition("@n")[2])
    await reaping.turn()
    assert set(lanes) - set(await streams.lanes(queue.store)) == set(lanes[-2:])


async def test_a_claimed_entry_is_looked_at_once(queue: Queue) -> None:
    for number in range(MANY // 5):
        await queue.admitted(f"g{number}", batch=f"b{number}")
    await queue.take(Stage.INIT, count=MANY)
    await read_long_ago(queue)
    reaping = reaper(queue)
    assert await commands(queue, reaping.turn) >= 2 * MANY // 5
    assert await commands(queue, reaping.turn) <= FEW


async def read_long_ago(queue: Queue) -> None:
    """What was read, was read two leases ago."""
    stream = queue.keys.stage(Stage.INIT)
    rows = await queue.command("XRANGE", stream, "-", "+")
    for chunk in batched(rows, 100):
        entries = [entry for entry, _ in chunk]
        await queue.command("XCLAIM", stream, "workers", "w1", 0, *entries, "IDLE", 2 * LEASE_MS, "JUSTID")


def reaper(queue: Queue) -> Reaping:
    return Reaping(queue.store, ServiceClock(queue.store, lease_ms=LEASE_MS), lease_ms=LEASE_MS)


async def ring(queue: Queue) -> None:
    await queue.command("ZADD", queue.keys.draw_bell, 0, reserved.BATCH)


async def test_the_draw_looks_at_the_batch_that_has_changed(queue: Queue) -> None:
    await reserved.drawn(queue, "g")
    for number in range(MANY):
        await queue.command("ZADD", queue.keys.dapo, number, f"acme:r{number}:b")
    drawing = Replenishing(queue.store)
    await ring(queue)
    assert await commands(queue, drawing.turn) >= MANY, "a new process looks at all of them"
    await ring(queue)
    assert await commands(queue, drawing.turn) <= FEW


async def test_a_draw_in_order_does_not_ask_each_group_in_play(queue: Queue) -> None:
    names = [f"g{number}" for number in range(60)]
    about, groups = reserved.reserved(queue, *names, target=60, surplus=Surplus.ORDERED)
    await queue.store.submit(about, groups)
    refs = dict.fromkeys((group.ref for group in groups), about.ref)
    assert await queue.store.draw(about.ref, about.ref, refs, drawn=0) == 60
    drawing = Replenishing(queue.store)
    await ring(queue)
    await drawing.turn()
    await ring(queue)
    assert await commands(queue, drawing.turn) <= FEW


async def test_a_cancel_of_a_batch_reads_its_own_groups(queue: Queue) -> None:
    for number in range(MANY):
        await queue.submit(f"g{number}", batch=f"b{number}")
    assert await commands(queue, lambda: cancel.cancel(queue.store, "batch", f"{RUN}:b7")) <= FEW
    assert await queue.command("ZCARD", queue.keys.backlog(RUN)) == MANY - 1
    assert await commands(queue, lambda: cancel.cancel(queue.store, "run", RUN)) >= MANY
