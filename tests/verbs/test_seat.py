"""seat: seats of a pool's ledger are written by whoever knows the ledger as it is."""

import itertools

import pytest

from prorl_mq import chance
from prorl_mq.rules.routing.room import Seat, SeatState
from prorl_mq.store import pools
from prorl_mq.store.pools import Seats
from prorl_mq.store.verbs.pools import SEATS_MS
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch
from tests.verbs.lost import Act, case

pytestmark = pytest.mark.anyio
LEDGER = "seats:policy"
ONE = Seat("http://b1", 700, SeatState.RUNNING, 1_000.0, 31_000.0)


@case("seat", [b"already"])
async def _(_queue: Queue) -> Act:
    async def act(q: Queue) -> list[bytes]:
        return (await q.store.seat(POOL, seen="", stamp="7", seats=[("t1", "r 1 2 3 http://b1")]))[:1]

    return act


async def test_seats_are_written_freed_and_read_as_they_were(
    queue: Queue, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = itertools.count(10**15)  # as long as most: `Watch` names them by that
    monkeypatch.setattr(chance, "number", lambda _bits: next(stamps))
    await watch.look()
    first, done = await pools.seat(queue.store, POOL, Seats(), {"t1": ONE, "t2": ONE})
    assert done
    assert await watch.changes() == {
        f"+ {LEDGER}": "hash",
        f"+ {LEDGER} ttl": "yes",
        f"+ {LEDGER} stamp": "T1",
        f"+ {LEDGER} t1": "r 700 1000 31000 http://b1",
        f"+ {LEDGER} t2": "r 700 1000 31000 http://b1",
    }
    second, done = await pools.seat(queue.store, POOL, first, {"t1": None})
    assert done
    assert await watch.changes() == {
        f"{LEDGER} stamp": "T1 → T2",
        f"- {LEDGER} t1": "r 700 1000 31000 http://b1",
    }
    read, done = await pools.seat(queue.store, POOL, first, {})
    assert first.stamp != second.stamp
    assert (read.stamp, read.seats, done) == (second.stamp, {"t2": ONE}, False)
    assert (await pools.seat(queue.store, POOL, read, {}))[0].stamp == read.stamp
    await watch.nothing_changed()


async def test_of_two_that_decide_at_once_the_second_one_decides_again(queue: Queue, watch: Watch) -> None:
    other = queue.worker("w2")
    first, _ = await pools.seat(queue.store, POOL, Seats(), {"t1": ONE})
    await watch.look()
    found, done = await pools.seat(other.store, POOL, Seats(), {"t2": ONE})
    assert (done, found.seats) == (False, {"t1": ONE})
    await watch.nothing_changed()
    found, done = await pools.seat(other.store, POOL, found, {"t2": ONE})
    assert (done, found.seats) == (True, {"t1": ONE, "t2": ONE})
    assert found.now_ms >= first.now_ms > 0


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.store.seat(POOL, seen="", stamp="7", seats=[("t1", "r 1 2 3 http://b1")])
    await watch.look()
    answer = await queue.store.seat(POOL, seen="", stamp="7", seats=[("t1", "r 1 2 3 http://b1")])
    assert answer[0] == b"already"
    await watch.nothing_changed()


async def test_a_ledger_that_nobody_writes_is_forgotten(queue: Queue) -> None:
    await pools.seat(queue.store, POOL, Seats(), {"t1": ONE})
    left_ms = await queue.command("PTTL", queue.keys.seats(POOL))
    assert 0 < left_ms <= SEATS_MS
