"""A pool that is short of room while Redis forgets, answers late, or attempts end at the wrong moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.rules.routing.room import Ask, Seat, SeatState
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import Seats
from prorl_mq.testing.fake_backend import FakeBackend
from tests.pool.conftest import until
from tests.pool.test_rooms import (
    FITS,
    POOL,
    asking,
    limited,
    quick,
    seats,
    sessions,
    sits,
    small,
)
from tests.support.queue import Queue
from workers.stages import rooms
from workers.stages.backends import Pools

pytestmark = pytest.mark.anyio
__all__ = ["quick", "small"]


class Gate:
    """Holds calls that write seats until it is opened; others may change the ledger meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held, self._opened = 0, asyncio.Semaphore(0)
        self._shut, seat = False, backends.seat

        async def gated(*given: Any) -> tuple[Seats, bool]:
            if self._shut:
                self.held += 1
                await self._opened.acquire()
            return await seat(*given)

        monkeypatch.setattr(rooms, "backends", SimpleNamespace(seat=gated))

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        self._shut = True
        try:
            yield
        finally:
            self._shut = False
            self._opened.release()

    async def reached(self, count: int) -> None:
        while self.held < count:
            await asyncio.sleep(0.005)

    def passes(self) -> None:
        """One call."""
        self._opened.release()


def ask(ref: str, address: str, patience_s: float = 60.0) -> Ask:
    return Ask(ref, address, 160, 0.0, True, 1000 * patience_s)


@pytest.mark.parametrize("kept", [True, False])
async def test_an_attempt_that_ends_while_the_ledger_is_written_leaves_no_seat(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """As a harness that hangs up, asks again and is stopped, while others write. The control forgets who has left."""
    if not kept:
        monkeypatch.setattr(rooms._PoolLedger, "leave", lambda ledger, ref: ledger._mine.pop(ref, None))
    address = small[0].address
    await limited(queue, pools, small[0])
    await sits(queue, Seat(address, 600, SeatState.RUNNING, 0.0, 1e15))
    first = asyncio.create_task(pools.rooms.begin(POOL, ask("mine", address), monotonic()))
    await until(lambda: _sits(queue, "mine"))
    gate = Gate(monkeypatch)
    loop = asyncio.create_task(pools.rooms._turn())
    async with asyncio.timeout(20), gate.shut():
        await gate.reached(1)
        await sits_more(queue, Seat(address, 1, SeatState.WAITING, 0.0, 1e15))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again = asyncio.create_task(pools.rooms.begin(POOL, ask("mine", address), monotonic()))
        await asyncio.sleep(0)
        gate.passes()
        await gate.reached(2)  # it was changed: the loop asks again, for the second turn too
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        pools.rooms.left(POOL, "mine")
    await loop
    if pools.rooms._ledgers:
        await pools.rooms._turn()
    assert ("mine" in await seats(queue)) is not kept


async def sits_more(queue: Queue, row: Seat) -> None:
    known = (await backends.seat(queue.store, POOL, Seats("unknown"), {}))[0]
    assert (await backends.seat(queue.store, POOL, known, {"more": row}))[1]


async def _sits(queue: Queue, ref: str) -> bool:
    return ref in await seats(queue)


@pytest.mark.parametrize("taken", ["before", "meanwhile"])
async def test_a_turn_whose_patience_ends_while_the_ledger_is_written_has_a_seat_until_it_ends(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """And none that runs afterwards. The control: its patience ends before."""
    address = small[0].address
    await limited(queue, pools, small[0])
    await sits(queue, Seat(address, 600, SeatState.RUNNING, 0.0, 1e15))
    waits = asyncio.create_task(pools.rooms.begin(POOL, ask("waits", address), monotonic()))
    await until(lambda: _sits(queue, "waits"))
    gate = Gate(monkeypatch)
    async with asyncio.timeout(20):
        if taken == "before":
            assert await pools.rooms.begin(POOL, ask("mine", address, 0.0), 0.0) == address
        pools.rooms.left(POOL, "nobody")
        async with gate.shut():
            loop = asyncio.create_task(pools.rooms._turn())
            await gate.reached(1)
            if taken == "meanwhile":
                assert await pools.rooms.begin(POOL, ask("mine", address, 0.0), 0.0) == address
        await loop
        await pools.rooms._turn()
        assert (await seats(queue))["mine"].state is SeatState.RUNNING
        pools.rooms.ended(POOL, "mine", 170)
        await pools.rooms._turn()
        assert (await seats(queue))["mine"][1:3] == (170, SeatState.TOOLS)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


@pytest.mark.parametrize("row", ["lost", "older", "pushed out"])
@pytest.mark.parametrize("trusts", [True, False])
async def test_a_server_that_lost_its_last_second_is_told_again_who_runs(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, row: str, trusts: bool
) -> None:
    """As after a fail-over. The control believes Redis: it then waits while it runs."""
    if not trusts:
        monkeypatch.setattr(rooms, "_as_known", lambda mine, known: known or mine)
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    [made] = await sessions(queue, pools, 1)
    await made.turn()
    await limited(queue, pools, small[0])
    ref = made.work.held.token
    async with asyncio.timeout(20):
        await made.turn()
        await pools.rooms._turn()
        if row != "pushed out":
            small[0].latency_ms = 60_000
            turn = asyncio.create_task(made.turn())
            await small[0].wait_running(1)
            await pools.rooms._turn()
        now = (await seats(queue))[ref]
        older = {"older": now._replace(state=SeatState.WAITING, since_ms=now.since_ms - 900)}
        written = older.get(row, now._replace(state=SeatState.OUT)).text
        if row == "lost":
            await queue.command("DEL", queue.keys.seats(POOL))
        else:
            await queue.command("HSET", queue.keys.seats(POOL), "stamp", "9", ref, written)
        for _ in range(2):
            await pools.rooms._turn()
        found = (await seats(queue))[ref].state
    if row == "pushed out":
        assert found is SeatState.OUT, "whoever gave its room away is believed"
    else:
        assert (found is SeatState.RUNNING) is (trusts or row == "lost")
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


@pytest.mark.parametrize("told", [True, False])
async def test_what_an_attempt_has_left_running_takes_no_seat(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """As a task of a family that outlives its rollout. The control: nobody remembers that the attempt is over."""
    [made] = await sessions(queue, pools, 1)
    await limited(queue, pools, *small)
    await made.turn()
    if not told:
        made.work.left.unseat = lambda: pools.rooms.left(POOL, made.work.held.token)
    made.work.left.unseat()
    await made.turn()
    await pools.rooms._turn()
    assert (await _sits(queue, made.work.held.token)) is not told


@pytest.mark.parametrize("alike", [True, False])
async def test_samples_of_one_prompt_share_its_room(
    queue: Queue, pools: Pools, small: list[FakeBackend], alike: bool
) -> None:
    """Its blocks are in the cache once. The control: prompts of their own, of which three fit."""
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    made = await sessions(queue, pools, 2 * FITS)
    if alike:
        for each in made:
            each.prompt = made[0].prompt
    await made[0].turn()
    await limited(queue, pools, small[0])
    small[0].latency_ms = 60_000
    async with asking(pools), asyncio.timeout(20):
        turns = [asyncio.create_task(each.turn()) for each in made]
        await small[0].wait_running(2 * FITS if alike else FITS)
        await pools.rooms._turn()
        states = [each.state for each in (await seats(queue)).values()]
        assert states.count(SeatState.WAITING) == (0 if alike else FITS)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
