"""A pool that is short of room: its backends say so, turns wait, sessions move, and seats end with their attempts."""

import asyncio
import contextlib
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.duties import probe_backends
from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.rules.routing import pressure, room
from prorl_mq.rules.routing.pressure import CacheLimit
from prorl_mq.rules.routing.room import Ask, Seat, SeatState
from prorl_mq.schema.items import Claim, Held
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import PoolView, Seats
from prorl_mq.store.server import acl
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import FakeFault
from tests.pool.conftest import in_run, joined, until
from tests.support.queue import POOL, Queue, spec
from tests.support.watch import Watch
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.run_clock import RunClock
from workers.stages import rooms
from workers.stages.backends import Pools
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
PROMPT = 160  # tokens: of 640 that a small backend has room for, three sessions fit
FITS, BLOCKS = 3, 40
_starts = itertools.count(10, PROMPT)


class Session:
    """One attempt and its policy."""

    def __init__(self, pools: Pools, held: Held, budget_s: float = float("inf")) -> None:
        self.work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
        self.policy: StickyPolicy = pools.policy(self.work, RunClock(budget_s))
        self.turns = 0
        start = next(_starts)
        self.prompt = range(start, start + PROMPT)

    async def turn(self) -> str:
        """The backend that has answered."""
        answer = await self.policy.generate(self.prompt, max_tokens=8, temperature=1.0, seed=1)
        self.turns += 1
        return answer.backend

    async def turns_of(self, count: int, tools_s: float = 0.02) -> None:
        for _ in range(count):
            await self.turn()
            await asyncio.sleep(tools_s)
        self.work.left.unseat()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that wait ask twenty times a second."""
    monkeypatch.setattr(rooms, "ASK_S", 0.05)


@pytest.fixture
async def small(fakes: Callable[..., Awaitable[FakeBackend]], queue: Queue) -> list[FakeBackend]:
    """Two backends whose caches have room for three sessions each."""
    made = [await fakes(latency_ms=100) for _ in range(2)]
    for fake in made:
        fake.cache.capacity_blocks = BLOCKS
    await joined(queue, *made)
    return made


@contextlib.asynccontextmanager
async def asking(pools: Pools) -> AsyncIterator[None]:
    """The loop of a worker."""
    task = asyncio.create_task(pools.rooms.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def sessions(queue: Queue, pools: Pools, count: int) -> list[Session]:
    return [Session(pools, held) for held in await in_run(queue, n=count)]


async def pressed(pools: Pools, health: BackendHealth, *under_way: Session) -> None:
    """Returns once all backends of the pool have limits: each session has a turn, or more until that is seen."""
    async with asking(pools), asyncio.timeout(30):
        while not await _all_limited(pools):
            turns = asyncio.gather(*(each.turn() for each in under_way))
            while not turns.done():
                await health.turn()
            await turns


async def limited(queue: Queue, pools: Pools, *fakes: FakeBackend, tokens: int = 608) -> None:
    """Gives backends limits as the health probe would."""
    for fake in fakes:
        seen = (await pools.view(POOL)).backends[fake.address].breaker
        facts = {"room": CacheLimit(tokens).text}
        await backends.observe(queue.store, POOL, fake.address, seen, backends.call_succeeded, facts)
    await until(lambda: _limited(pools))


async def sits(queue: Queue, *rows: Seat | None) -> None:
    """Puts sessions of other workers into the ledger, or takes them out."""
    known = (await backends.seat(queue.store, POOL, Seats("unknown"), {}))[0]
    assert (await backends.seat(queue.store, POOL, known, {f"other {at}": row for at, row in enumerate(rows)}))[1]


async def _limited(pools: Pools) -> bool:
    """True if any backend has a limit."""
    return bool((await pools.view(POOL)).limits)


async def _all_limited(pools: Pools) -> bool:
    seen = await pools.view(POOL)
    return set(seen.limits) == set(seen.backends)


def most_at_once(fake: FakeBackend) -> list[int]:
    """How many requests were under way at each answer."""
    seen, reply = [0], fake.reply

    def watched(*given: Any) -> Any:
        seen.append(fake.running)
        return reply(*given)

    fake.reply = watched
    return seen


async def seats(queue: Queue) -> dict[str, Seat]:
    return dict((await backends.seat(queue.store, POOL, Seats("unknown"), {}))[0].seats)


@pytest.fixture
def health(queue: Queue, control: BackendControl) -> BackendHealth:
    return BackendHealth(queue.store, control, every_s=0.01)


async def test_a_limit_is_written_when_a_pool_is_short_of_room_and_costs_nothing_else(
    queue: Queue, pools: Pools, health: BackendHealth, small: list[FakeBackend]
) -> None:
    await health.turn()
    watch = Watch(queue.redis, queue.keys)
    await watch.look()
    await health.turn()
    await watch.nothing_changed()
    await pressed(pools, health, *await sessions(queue, pools, 8))
    limit = CacheLimit(int(0.95 * 16 * BLOCKS))
    await health.turn()
    assert (await pools.view(POOL)).limits == dict.fromkeys((fake.address for fake in small), limit)
    assert all(each.note and "608 tokens" in each.note for each in await backends.listing(queue.store, POOL))
    await watch.look()
    await health.turn()
    await watch.nothing_changed()


async def test_a_pool_that_has_room_again_is_told_so(
    queue: Queue, pools: Pools, health: BackendHealth, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    await pressed(pools, health, *await sessions(queue, pools, 8))
    monkeypatch.setattr(pressure, "RELIEVED_MS", 1.0)

    async def relieved() -> bool:
        await health.turn()
        return not await _limited(pools)

    await until(relieved)
    assert {fake.running for fake in small} == {0}


async def test_another_process_that_probes_begins_with_the_limits_that_are_known(
    queue: Queue, pools: Pools, control: BackendControl, health: BackendHealth, small: list[FakeBackend]
) -> None:
    await pressed(pools, health, *await sessions(queue, pools, 8))
    await health.turn()
    before = (await pools.view(POOL)).limits
    other = BackendHealth(queue.store, control, every_s=0.01)
    await other.turn()
    await other.turn()
    assert (await pools.view(POOL)).limits == before
    assert len(before) == len(small)


async def test_a_pool_without_metrics_is_never_short_of_room(
    queue: Queue, pools: Pools, health: BackendHealth, small: list[FakeBackend]
) -> None:
    for fake in small:
        fake.refused["/metrics"] = 404
    under_way = await sessions(queue, pools, 8)
    turns = asyncio.gather(*(each.turn() for each in under_way))
    while not turns.done():
        await health.turn()
    assert not await _limited(pools)
    assert await queue.command("EXISTS", queue.keys.seats(POOL)) == 0


async def test_a_pool_with_room_costs_no_command_more_than_one_without_metrics(
    queue: Queue, pools: Pools, health: BackendHealth, small: list[FakeBackend]
) -> None:
    made = await sessions(queue, pools, 2)
    costs = []
    async with asking(pools):
        for told in (200, 404):
            for fake in small:
                fake.refused["/metrics"] = told
                if told == 200:
                    del fake.refused["/metrics"]
            await health.turn()
            for each in made:
                await each.turn()
            await queue.command("CONFIG", "RESETSTAT")
            await asyncio.gather(*(each.turns_of(4) for each in made))
            await health.turn()
            costs.append(await _commands(queue))
    assert costs[0] == costs[1]
    assert costs[0]["hgetall"] > 0


async def _commands(queue: Queue) -> dict[str, int]:
    """Calls of each command since the counts were reset, without those that keep a connection alive."""
    found = await queue.command("INFO", "commandstats")
    counts = {name: int(calls) for name, calls in re.findall(r"cmdstat_(\w+):calls=(\d+)", found.decode())}
    return {name: calls for name, calls in counts.items() if name not in {"ping", "config", "info"}}


@pytest.mark.parametrize("ruled", [True, False])
async def test_turns_wait_for_room_and_every_session_has_all_its_turns(
    queue: Queue,
    pools: Pools,
    health: BackendHealth,
    small: list[FakeBackend],
    monkeypatch: pytest.MonkeyPatch,
    ruled: bool,
) -> None:
    """Lengths are what they were to be, in the groups' order, whoever waits. The control has no rule: all begin."""
    made = await sessions(queue, pools, 12)
    await pressed(pools, health, *made)
    if not ruled:
        monkeypatch.setattr(rooms, "decide", lambda seats, _limits, *rest: room.decide(seats, {}, *rest))
    seen = [most_at_once(fake) for fake in small]
    lengths, before = [1 + at % 4 for at in range(len(made))], [each.turns for each in made]
    async with asking(pools), asyncio.timeout(30):
        await asyncio.gather(*(each.turns_of(count) for each, count in zip(made, lengths, strict=True)))
        if ruled:
            await until(lambda: _nobody_sits(queue))
    assert [each.turns - began for each, began in zip(made, before, strict=True)] == lengths
    assert (max(map(max, seen)) <= FITS) is ruled
    assert sum((await _loads(queue)).values()) == len(made)


async def _nobody_sits(queue: Queue) -> bool:
    return not await seats(queue)


async def _loads(queue: Queue) -> dict[str, int]:
    return await backends.loads(queue.store, POOL)


@pytest.mark.parametrize("much_fewer", [True, False])
async def test_a_session_moves_when_its_backend_falls_behind_and_another_has_far_fewer(
    queue: Queue, pools: Pools, health: BackendHealth, small: list[FakeBackend], much_fewer: bool
) -> None:
    """The control: as many sessions there as here. Then moving would only cost the prefix."""
    here, there = small
    for fake in small:
        fake.cache.capacity_blocks = 100 * BLOCKS
    made = await sessions(queue, pools, 6)
    counts = Counter([await each.turn() for each in made])
    assert counts == {here.address: 3, there.address: 3}
    mine = [each for each in made if each.policy.backend and each.policy.backend.address == here.address]
    others = [each for each in made if each not in mine]
    for address, behind in ((here.address, True), (there.address, False)):
        limit = CacheLimit(60_000, behind).text
        seen = (await pools.view(POOL)).backends[address].breaker
        await backends.observe(queue.store, POOL, address, seen, backends.call_succeeded, {"room": limit})
    await until(lambda: _limited(pools))
    async with asking(pools):
        if not much_fewer:
            await asyncio.gather(*(each.turn() for each in others))
        answered = await asyncio.gather(*(each.turn() for each in mine))
    moved = list(answered).count(there.address)
    assert (moved > 0) is much_fewer, answered
    assert await _loads(queue) == {here.address: 3 - moved, there.address: 3 + moved}
    assert all(each.policy.moves == 0 for each in made), "a move is no failure"


@pytest.mark.parametrize("alive", [False, True])
async def test_the_seats_of_a_worker_that_died_are_free_after_a_while(
    queue: Queue,
    pools: Pools,
    clients: InferenceClients,
    health: BackendHealth,
    small: list[FakeBackend],
    monkeypatch: pytest.MonkeyPatch,
    alive: bool,
) -> None:
    """The control: the worker lives, and its long turns keep their room for longer than a seat lasts."""
    monkeypatch.setattr(rooms, "LIFE_MS", 1_000.0)
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    made = await sessions(queue, pools, 6)
    await pressed(pools, health, *made)
    survivor = Pools(queue.store, clients)
    late = Session(survivor, made[FITS].work.held)
    async with asking(survivor), contextlib.AsyncExitStack() as worker, asyncio.timeout(20):
        await worker.enter_async_context(asking(pools))
        small[0].latency_ms = 60_000
        long = [asyncio.create_task(each.turn()) for each in made[:FITS]]
        await small[0].wait_running(FITS)
        small[0].latency_ms = 0
        turn = asyncio.create_task(late.turn())
        await until(lambda: _is(queue, late, SeatState.WAITING))
        first = await seats(queue)
        if not alive:
            await worker.aclose()
            for each in long:
                each.cancel()
        await until(lambda: _later(queue, first) if alive else _done(turn))
        assert turn.done() is not alive
        for each in (*long, turn):
            each.cancel()
        await asyncio.gather(*long, turn, return_exceptions=True)


async def _is(queue: Queue, session: Session, state: SeatState) -> bool:
    found = (await seats(queue)).get(session.work.held.token)
    return found is not None and found.state is state


async def _later(queue: Queue, first: dict[str, Seat]) -> bool:
    """Every seat that there was has been renewed beyond its first end."""
    found = await seats(queue)
    return all(ref in found and found[ref].until_ms >= seat.until_ms + 1_000 for ref, seat in first.items())


async def _done(turn: "asyncio.Task[str]") -> bool:
    return turn.done()


async def test_a_turn_begins_when_its_patience_is_over(
    queue: Queue, pools: Pools, health: BackendHealth, small: list[FakeBackend]
) -> None:
    """Other sessions have all the room, without end: no rollout fails for that."""
    made = await sessions(queue, pools, 8)
    await pressed(pools, health, *made)
    await sits(queue, *(Seat(fake.address, 10_000, SeatState.RUNNING, 0.0, 1e15) for fake in small))
    late = Session(pools, made[0].work.held, budget_s=2.0)
    async with asking(pools), asyncio.timeout(10):
        await late.turn()
    clock = late.policy._clock
    assert 0.3 < clock.stalled_s < 1.0, (
        "a half of what a turn may wait for infrastructure, which is a half of RUN's time"
    )
    assert pools.waits.text == ""


async def test_a_worker_whose_user_may_not_write_seats_has_its_turns(
    queue: Queue, clients: InferenceClients, settings: RedisSettings, pools: Pools, health: BackendHealth, small: Any
) -> None:
    """As one whose Redis has the users of an older release."""
    made = await sessions(queue, pools, 8)
    await pressed(pools, health, *made)
    rules = acl.users(settings.namespace)[f"{settings.namespace}-worker"]
    older = rules.replace(f" ~{queue.keys.prefix}seats:*", "")
    assert older != rules
    await queue.command("ACL", "SETUSER", "older", "reset", "on", ">secret", *older.split())
    about = settings.__class__(
        url=settings.url, namespace=settings.namespace, username="older", password="secret", outage_ms=1_000
    )
    client = connect(about)
    try:
        mine = Pools(Queue(client, queue.keys).store, clients)
        answered = await Session(mine, made[0].work.held).turn()
        assert answered in {fake.address for fake in small}
    finally:
        await client.aclose()
        await queue.command("ACL", "DELUSER", "older")


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("how", ["cancelled", "fails", "cancelled while it waits"])
async def test_a_turn_that_is_over_leaves_no_seat_that_runs_or_waits(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, how: str, told: bool
) -> None:
    """As a harness that hangs up, and continues later. The control: nobody says that the turn is over."""
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    if not told:
        monkeypatch.setattr(rooms.AttemptSeat, "ended", lambda _self, _turn: None)
        monkeypatch.setattr(rooms._PoolLedger, "give_up", lambda _self, _ref: None)
    [made] = await sessions(queue, pools, 1)
    await made.turn()
    await limited(queue, pools, small[0])
    if how == "cancelled while it waits":
        await sits(queue, Seat(small[0].address, 600, SeatState.RUNNING, 0.0, 1e15))
    if how == "fails":
        small[0].fault = FakeFault.REFUSED
    else:
        small[0].latency_ms = 60_000
    state = SeatState.WAITING if how == "cancelled while it waits" else SeatState.RUNNING
    async with asking(pools), asyncio.timeout(20):
        turn = asyncio.create_task(made.turn())
        if how != "fails":
            await until(lambda: _is(queue, made, state))
            turn.cancel()
        assert isinstance((await asyncio.gather(turn, return_exceptions=True))[0], BaseException)
        await pools.rooms._turn()
        left = (await seats(queue)).get(made.work.held.token)
    assert (left is None or left.state in {SeatState.TOOLS, SeatState.OUT}) is told, left


@pytest.mark.parametrize("shares", [True, False])
async def test_turns_at_once_of_one_attempt_share_its_seat(
    queue: Queue, pools: Pools, small: list[FakeBackend], shares: bool
) -> None:
    """As sub-agents through the gateway. The control: turns of three attempts, of which the third has no room."""
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    made = await sessions(queue, pools, FITS)
    await made[0].turn()
    await limited(queue, pools, small[0], tokens=400)
    small[0].latency_ms = 60_000
    async with asking(pools), asyncio.timeout(20):
        turns = [asyncio.create_task(made[0 if shares else at].turn()) for at in range(FITS)]
        await small[0].wait_running(FITS if shares else FITS - 1)
        await pools.rooms._turn()
        found = await seats(queue)
        mine = found[made[0].work.held.token]
        assert mine.state is SeatState.RUNNING
        assert mine.tokens == (FITS if shares else 1) * room.needs(PROMPT, 8)
        assert [each.state for each in found.values()].count(SeatState.WAITING) == (0 if shares else 1)
        tokens = []
        for turn in turns:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
            await pools.rooms._turn()
            tokens.append((await seats(queue)).get(made[0].work.held.token))
    if shares:
        one = room.needs(PROMPT, 8)
        assert [(each.tokens, each.state) for each in tokens if each] == [
            (2 * one, SeatState.RUNNING),
            (one, SeatState.RUNNING),
            (PROMPT, SeatState.TOOLS),
        ]


async def test_another_turn_of_an_attempt_waits_with_the_first_and_asks_when_that_hangs_up(
    queue: Queue, pools: Pools, small: list[FakeBackend]
) -> None:
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    [made] = await sessions(queue, pools, 1)
    await made.turn()
    await limited(queue, pools, small[0])
    await sits(queue, Seat(small[0].address, 600, SeatState.RUNNING, 0.0, 1e15))
    async with asking(pools), asyncio.timeout(20):
        first, second = (asyncio.create_task(made.turn()) for _ in range(2))
        await until(lambda: _is(queue, made, SeatState.WAITING))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: _is(queue, made, SeatState.WAITING))
        assert not second.done()
        await sits(queue, None)
        await second


@pytest.mark.parametrize("row", ["x 1 2 3 http://a", "r 1 2", "r many 2 3 http://a", "r 1 NaN 3 http://a", "\x80"])
async def test_a_row_that_cannot_be_read_counts_as_nothing(
    queue: Queue, pools: Pools, small: list[FakeBackend], row: str
) -> None:
    """As of a later release: the turns of this one begin, and its seats are written."""
    [made] = await sessions(queue, pools, 1)
    await limited(queue, pools, *small)
    await queue.command("HSET", queue.keys.seats(POOL), "stamp", "9", "other", row.encode("latin-1"))
    async with asking(pools), asyncio.timeout(20):
        await made.turn()
        await pools.rooms._turn()
    assert (await seats(queue)).keys() == {made.work.held.token}


async def test_the_loop_outlives_any_fault_of_one_pool(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also turns begin: the ledger is no reason to fail one."""
    [made] = await sessions(queue, pools, 1)
    await limited(queue, pools, *small)
    asked, told = asyncio.Event(), room.decide

    def broken(*_: Any) -> Any:
        asked.set()
        raise TypeError("a row as nobody knows it")

    async with asking(pools), asyncio.timeout(20):
        await made.turn()
        monkeypatch.setattr(rooms, "decide", broken)
        await asked.wait()
        await made.turn()
        monkeypatch.setattr(rooms, "decide", told)
        await until(lambda: _is(queue, made, SeatState.TOOLS))


@pytest.mark.parametrize("kept_ms", [30_000.0, 0.0])
async def test_a_look_that_fails_leaves_the_limits_for_a_while(
    queue: Queue,
    pools: Pools,
    health: BackendHealth,
    small: list[FakeBackend],
    monkeypatch: pytest.MonkeyPatch,
    kept_ms: float,
) -> None:
    """The control: they are kept for no time."""
    monkeypatch.setattr(probe_backends, "KEPT_MS", kept_ms)
    await pressed(pools, health, *await sessions(queue, pools, 8))
    await health.turn()
    before = (await pools.view(POOL)).limits
    assert len(before) == len(small)
    for fake in small:
        fake.refused["/metrics"] = 503
    for _ in range(2):
        await health.turn()
    assert ((await backends.view(queue.store, POOL)).limits == before) is (kept_ms > 0)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("how", ["announced", "drained", "failing"])
async def test_a_backend_that_takes_no_sessions_keeps_its_limit(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, how: str, kept: bool
) -> None:
    """Turns of its own sessions wait still. The control: limits are of those alone that take some."""
    here = small[0]
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    [made] = await sessions(queue, pools, 1)
    await made.turn()
    await limited(queue, pools, here)
    await sits(queue, Seat(here.address, 600, SeatState.RUNNING, 0.0, 1e15))
    if not kept:
        limits = PoolView.__dict__["limits"].fget
        monkeypatch.setattr(
            PoolView,
            "limits",
            property(lambda view: {at: each for at, each in limits(view).items() if at in view.takers}),
        )

    async def waits() -> bool:
        return "room in the caches" in pools.waits.text

    async def takes() -> bool:
        return here.address in (await pools.view(POOL)).takers

    async with asking(pools), asyncio.timeout(20):
        turn = asyncio.create_task(made.turn())
        await until(waits)
        if how == "announced":
            seen = (await pools.view(POOL)).backends[here.address].breaker
            facts = {"version": "6"}
            await backends.observe(queue.store, POOL, here.address, seen, backends.call_succeeded, facts)
            await queue.store.announce(POOL, 7, "abort", "")
        elif how == "drained":
            await backends.remove(queue.store, POOL, here.address, drain=True)
        while how == "failing" and await takes():
            await pools.observe(POOL, here.address, backends.call_failed)
        await until(lambda: _not(takes))
        if kept:
            await pools.rooms._turn()
            assert await waits()
        else:
            await until(lambda: _not(waits))
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def _not(true: Callable[[], Awaitable[bool]]) -> bool:
    return not await true()


@pytest.mark.parametrize("rewritten", [False, True])
async def test_a_turn_that_waits_writes_nothing_and_begins_when_another_process_gives_room_up(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, rewritten: bool
) -> None:
    """The control: rows are renewed at each question."""
    if rewritten:
        monkeypatch.setattr(Seat, "renewed", lambda row, now_ms, life_ms: row._replace(until_ms=now_ms + life_ms))
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    [made] = await sessions(queue, pools, 1)
    await made.turn()
    await limited(queue, pools, small[0])
    await sits(queue, Seat(small[0].address, 600, SeatState.RUNNING, 0.0, 1e15))
    turn = asyncio.create_task(made.turn())
    await until(lambda: _is(queue, made, SeatState.WAITING))
    await pools.rooms._turn()
    before = await queue.command("HGETALL", queue.keys.seats(POOL))
    for _ in range(3):
        await pools.rooms._turn()
    assert (await queue.command("HGETALL", queue.keys.seats(POOL)) != before) is rewritten
    await sits(queue, None)
    await pools.rooms._turn()
    assert await _is(queue, made, SeatState.RUNNING)
    await turn


def drifting(turn: rooms._Turn, now_ms: float) -> Ask:
    """Since when a turn waits, as each look at the clock says."""
    return turn.ask._replace(since_ms=now_ms - 1000 * (monotonic() - turn.since))


@pytest.mark.parametrize("kept", [True, False])
async def test_turns_of_two_processes_that_wait_write_nothing(
    queue: Queue,
    pools: Pools,
    clients: InferenceClients,
    small: list[FakeBackend],
    monkeypatch: pytest.MonkeyPatch,
    kept: bool,
) -> None:
    """The control: parts of milliseconds, which Redis does not have. Each writes when it has read the other's row."""
    if not kept:
        monkeypatch.setattr(rooms._Turn, "at", drifting)
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    processes = [pools, Pools(queue.store, clients)]
    made = [Session(mine, held) for mine, held in zip(processes, await in_run(queue, n=2), strict=True)]
    for each in made:
        await each.turn()
    await limited(queue, pools, small[0])
    await until(partial(_limited, processes[1]))
    await sits(queue, Seat(small[0].address, 600, SeatState.RUNNING, 0.0, 1e15))
    async with ending(*(asyncio.create_task(each.turn()) for each in made)):
        for each in made:
            await until(partial(_is, queue, each, SeatState.WAITING))
        for mine in processes * 2:
            await mine.rooms._turn()
        before = await queue.command("HGETALL", queue.keys.seats(POOL))
        for mine in processes * 3:
            await mine.rooms._turn()
        assert (await queue.command("HGETALL", queue.keys.seats(POOL)) == before) is kept


@pytest.mark.parametrize("kept", [True, False])
async def test_the_oldest_begins_also_when_the_clock_of_redis_has_stepped(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Or when Redis answered late at first. The control: each is younger than the other one's row, and both wait."""
    if not kept:
        monkeypatch.setattr(rooms._Turn, "at", drifting)
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    made = await sessions(queue, pools, 2)
    for each in made:
        await each.turn()
    await limited(queue, pools, small[0])
    await sits(queue, Seat(small[0].address, 600, SeatState.RUNNING, 0.0, 1e15))
    small[0].latency_ms = 60_000
    asked = backends.seat

    async def later(*about: Any) -> tuple[Seats, bool]:
        found, done = await asked(*about)
        return found._replace(now_ms=found.now_ms + 5_000), done

    async with ending(*(asyncio.create_task(each.turn()) for each in made)):
        for each in made:
            await until(partial(_is, queue, each, SeatState.WAITING))
        monkeypatch.setattr(backends, "seat", later)
        await pools.rooms._turn()
        await sits(queue, Seat(small[0].address, 300, SeatState.RUNNING, 0.0, 1e15))
        for _ in range(3):
            await pools.rooms._turn()
        found = [(await seats(queue))[each.work.held.token].state for each in made]
    assert found == [SeatState.RUNNING if kept else SeatState.WAITING, SeatState.WAITING]


@pytest.mark.parametrize("taken", [True, False])
async def test_a_turn_that_begins_without_the_ledger_runs_in_it_as_soon_as_that_can_be_asked(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """The control: it counts as between two turns, and others push it out while it runs."""
    if not taken:
        monkeypatch.setattr(rooms._PoolLedger, "take", lambda *_: None)
    [made] = await sessions(queue, pools, 1)
    await limited(queue, pools, *small)
    await made.turn()
    await pools.rooms._turn()
    for fake in small:
        fake.latency_ms = 60_000
    told = room.decide
    monkeypatch.setattr(rooms, "decide", lambda *_: 1 / 0)
    async with ending(asyncio.create_task(made.turn())):
        await until(lambda: _run_at(small))
        monkeypatch.setattr(rooms, "decide", told)
        await pools.rooms._turn()
        assert await _is(queue, made, SeatState.RUNNING) is taken


async def _run_at(fakes: list[FakeBackend]) -> bool:
    return any(fake.running for fake in fakes)


async def test_a_turn_that_is_told_where_to_begin_when_its_patience_ends_runs_there() -> None:
    ledger = rooms._PoolLedger(None, POOL)  # type: ignore[arg-type]
    turn = rooms._Turn(Ask("t1", "http://b1", 100, 0, False, 1_000), monotonic())
    turn.answer.set_result("http://b2")
    ledger.take(turn)
    assert ledger.idle, "the question has put its seat down"


@pytest.mark.parametrize("kept", [True, False])
async def test_a_turn_that_hangs_up_and_asks_again_passes_nobody(
    queue: Queue, pools: Pools, small: list[FakeBackend], monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """As a harness whose client gives up after a minute. The control: its seat is free, so it counts as one whose
    prefix is there, and pushes out another one whose prefix is.
    """
    if not kept:
        monkeypatch.setattr(rooms._PoolLedger, "give_up", rooms._PoolLedger.leave)
    await backends.remove(queue.store, POOL, small[1].address, drain=False)
    [made] = await sessions(queue, pools, 1)
    await limited(queue, pools, small[0])
    await made.turn()
    await pools.rooms._turn()
    run = Seat(small[0].address, 500, SeatState.RUNNING, 0.0, 1e15)
    await sits(queue, run)
    for state in (SeatState.WAITING, SeatState.WAITING if kept else SeatState.RUNNING):
        small[0].latency_ms = 60_000
        async with ending(asyncio.create_task(made.turn())):
            await until(partial(_is, queue, made, state))
        await sits(queue, run._replace(tokens=250), run._replace(tokens=350, state=SeatState.TOOLS))


@contextlib.asynccontextmanager
async def ending(*turns: "asyncio.Task[str]") -> AsyncIterator[None]:
    """Turns that are given up afterwards."""
    try:
        yield
    finally:
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
