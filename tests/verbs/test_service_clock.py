"""The service's clock: what a jump of Redis's clock must not do to leases, deadlines and dead workers."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.chaos.disturb import Disturbance
from prorl_mq.duties.expire import Expiry
from prorl_mq.duties.reap import Reaping
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.process import redis_server
from prorl_mq.schema.items import LONGEST_BACK_OFF_MS
from prorl_mq.schema.messages import Limits, Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from tests.support.epoch import another_server
from tests.support.queue import Queue
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000
LEASE_MS = 400


class Clocked(Queue):
    """A queue on a server whose clock can be set."""

    wall: Disturbance
    ahead_ms = 0

    async def jump(self, by_ms: int) -> None:
        """Sets the clock, and waits until the server, which looks at it now and then, shows it."""
        wanted_ms = (await self.store.clock()).clock_ms + by_ms
        self.ahead_ms += by_ms
        self.wall.set_clock(self.ahead_ms / 1000)
        while abs((await self.store.clock()).clock_ms - wanted_ms) > HOUR_MS / 2:
            await asyncio.sleep(0.01)


@pytest.fixture
async def queue() -> AsyncIterator[Clocked]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        wall, binary = Disturbance(Path(name) / "clock"), Path(name) / "server"
        preload = " ".join(f"{variable}={value}" for variable, value in wall.environment.items())
        binary.write_text(f'#!/bin/sh\nexec env {preload} {redis_server.find_binary()} "$@"\n')
        binary.chmod(0o700)
        async with redis_server.running(Path(name), binary=str(binary)) as settings:
            redis = connect(settings)
            made = Clocked(redis, Keys(settings.namespace))
            made.wall = wall
            await made.prepare("n1")
            yield made
            await redis.aclose()


async def jumped_while_leased(queue: Clocked, by_ms: int) -> ServiceClock:
    """A clock that has looked once, then jumps under a leased job."""
    clock = ServiceClock(queue.store, lease_ms=LEASE_MS)
    assert not await clock.jumped()
    await queue.hold(Stage.INIT)
    await queue.jump(by_ms)
    return clock


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_a_jump_is_taken_out_and_no_lease_is_taken_back(queue: Clocked, by_ms: int) -> None:
    before_ms = await queue.store.now_ms()
    clock = await jumped_while_leased(queue, by_ms)
    await Reaping(queue.store, clock, lease_ms=LEASE_MS).turn()
    assert (await queue.snapshot(JOB)).state == "leased"
    assert abs(await queue.store.now_ms() - before_ms) < 60_000
    assert not await clock.calm()


async def test_without_the_clock_the_same_jump_ends_the_lease(queue: Clocked) -> None:
    """The control: a reaper whose clock has not seen the time before the jump."""
    await jumped_while_leased(queue, HOUR_MS)
    await Reaping(queue.store, ServiceClock(queue.store, lease_ms=LEASE_MS), lease_ms=LEASE_MS).turn()
    assert (await queue.snapshot(JOB)).state == "queued"


async def test_a_step_back_that_no_process_saw_is_taken_out_at_the_first_look(queue: Clocked) -> None:
    """The only API process was down while the clock was set back: the service's time was later than now."""
    await ServiceClock(queue.store, lease_ms=LEASE_MS).jumped()
    before_ms = await queue.store.now_ms()
    await queue.jump(-HOUR_MS)
    assert await ServiceClock(queue.store, lease_ms=LEASE_MS).jumped()
    assert before_ms - 1000 < await queue.store.now_ms() < before_ms + 60_000


@pytest.mark.parametrize("written_down", [True, False], ids=["", "control"])
async def test_a_job_that_comes_between_a_step_back_and_its_notice_does_not_expire(
    queue: Clocked, written_down: bool
) -> None:
    clock = ServiceClock(queue.store, lease_ms=LEASE_MS)
    await clock.jumped()
    if not written_down:
        await queue.command("HDEL", queue.keys.epoch, "floor_ms")
    await queue.jump(-HOUR_MS)
    [job] = await queue.admitted(limits=Limits(total_ms=HOUR_MS // 2))
    assert await clock.jumped()
    await Expiry(queue.store, clock).turn()
    assert ((await queue.snapshot(job)).state == "queued") is written_down


async def test_time_that_was_written_down_while_the_clock_was_ahead_for_a_moment_is_forgotten(queue: Clocked) -> None:
    """It came back before the next look of the process that had seen the time before."""
    clock, other = (ServiceClock(queue.store, lease_ms=LEASE_MS) for _ in range(2))
    await clock.jumped()
    before_ms = await queue.store.now_ms()
    await queue.jump(HOUR_MS)
    await other.jumped()
    await queue.jump(-HOUR_MS)
    assert await queue.store.now_ms() > before_ms + HOUR_MS - 1_000
    assert await clock.jumped()
    assert await queue.store.now_ms() < before_ms + 60_000


async def test_two_processes_that_saw_a_jump_differently_do_not_take_turns(queue: Clocked) -> None:
    """One saw it; the other has begun since, and knows the time that was written down two seconds before."""
    seen = ServiceClock(queue.store, lease_ms=LEASE_MS)
    await seen.jumped()
    await queue.command("HINCRBY", queue.keys.epoch, "floor_ms", -2_000)
    await queue.jump(-HOUR_MS)
    begun = ServiceClock(queue.store, lease_ms=LEASE_MS)
    offsets = []
    for _ in range(4):
        for each in (begun, seen):
            await each.jumped()
            offsets.append((await queue.store.clock()).offset_ms)
    assert HOUR_MS - 10_000 < min(offsets) <= max(offsets) < HOUR_MS
    assert max(offsets) - min(offsets) < 500


async def test_an_offset_that_a_restart_has_lost_is_put_back(queue: Clocked) -> None:
    clock = await jumped_while_leased(queue, -HOUR_MS)
    await clock.jumped()
    kept = (await queue.store.clock()).offset_ms
    await another_server(queue)
    await queue.command("HSET", queue.keys.epoch, "offset_ms", 0)
    assert await clock.jumped()
    assert abs((await queue.store.clock()).offset_ms - kept) < 500


async def test_a_server_that_lost_everything_begins_with_the_time_on_the_wall(queue: Clocked) -> None:
    """The clock was set back with it. A process that slept through that knows the time before: what was submitted
    since would expire by it.
    """
    clock = ServiceClock(queue.store, lease_ms=LEASE_MS)
    await clock.jumped()
    await queue.jump(-HOUR_MS)
    await queue.command("FLUSHALL")
    await another_server(queue)
    await queue.prepare("n1")
    [job] = await queue.admitted(limits=Limits(total_ms=HOUR_MS // 2))
    await asyncio.sleep(2 * LEASE_MS / 1000)
    assert not await clock.jumped()
    await Expiry(queue.store, clock).turn()
    assert (await queue.snapshot(job)).state == "queued"


async def test_a_jump_that_others_have_put_right_and_given_back_is_none_any_more(queue: Clocked) -> None:
    """A process that gets a duty back has not looked for long."""
    clock, other = (ServiceClock(queue.store, lease_ms=LEASE_MS) for _ in range(2))
    await clock.jumped()
    await queue.jump(HOUR_MS)
    await asyncio.sleep(2 * LEASE_MS / 1000)
    await other.jumped()
    assert not await clock.jumped()
    assert (await queue.store.clock()).offset_ms == 0


async def test_a_restart_onto_a_clock_that_is_ahead_stops_reaping_for_a_lease_alone(queue: Clocked) -> None:
    clock = ServiceClock(queue.store, lease_ms=LEASE_MS)
    await clock.jumped()
    await queue.jump(HOUR_MS)
    await another_server(queue)
    assert not await clock.calm()
    async with asyncio.timeout(20):
        while not await clock.calm():
            await asyncio.sleep(0.05)


async def test_a_job_that_failed_while_the_clock_was_ahead_is_repeated_in_time(queue: Clocked) -> None:
    clock = await jumped_while_leased(queue, HOUR_MS)
    await queue.fail(await queue.held_now(JOB))
    await clock.jumped()
    due_ms = float(await queue.command("ZSCORE", queue.keys.delayed, JOB))
    assert due_ms <= await queue.store.now_ms() + LONGEST_BACK_OFF_MS


async def test_a_deadline_is_not_passed_by_a_jump(queue: Clocked) -> None:
    clock = await jumped_while_leased(queue, 100 * HOUR_MS)
    await Expiry(queue.store, clock).turn()
    await Expiry(queue.store, clock).turn()
    assert (await queue.snapshot(JOB)).state == "leased"


async def test_after_a_lease_the_dead_are_taken_back_again(queue: Clocked) -> None:
    clock = await jumped_while_leased(queue, HOUR_MS)
    reaping = Reaping(queue.store, clock, lease_ms=LEASE_MS)
    await queue.overdue(JOB)
    async with asyncio.timeout(20):
        while (await queue.snapshot(JOB)).state == "leased":
            await asyncio.sleep(await reaping.turn())


async def test_a_corrected_clock_comes_back_to_the_walls(queue: Clocked) -> None:
    """An operator put the clock right; the service's time follows, two hundredths of the time that passes."""
    clock = await jumped_while_leased(queue, HOUR_MS)
    await clock.jumped()
    await queue.command("HSET", queue.keys.epoch, "offset_ms", 50)
    clock = ServiceClock(queue.store, lease_ms=LEASE_MS)
    async with asyncio.timeout(60):
        while (await queue.store.clock()).offset_ms:
            await clock.jumped()
            await asyncio.sleep(0.1)
