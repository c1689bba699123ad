"""Three runs of two tenants on a real Redis, with slow workers that a test steps: weights, quotas, evaluation."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from prorl_mq.duties import admit
from prorl_mq.duties.admit import Admission
from prorl_mq.duties.sweep import Janitor
from prorl_mq.rules import memory
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import RunRef, TenantId, batch_ref, group_ref, tenant_of
from prorl_mq.schema.items import Finish, Held, NewBatch, NewGroup
from prorl_mq.schema.messages import Outcome, Purpose, Stage
from prorl_mq.schema.settings import Book, RunSettings, TenantSettings
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store import results, run_settings, runs, work
from prorl_mq.store.direct import consumers
from prorl_mq.store.families import digest_of
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import ADMIT, Store
from tests.support.queue import RUN, Queue, record, spec
from tests.verbs.reserved import reserved

pytestmark = pytest.mark.anyio
X, Y, Z = RunRef("a:x"), RunRef("a:y"), RunRef("b:z")
SLOTS = 8


class Farm:
    """Admission, and workers of `SLOTS` slots in which a job stays until the test ends it."""

    def __init__(self, queue: Queue, waiting: Store) -> None:
        self.queue, self.store = queue, queue.store
        self.admission = Admission(waiting)
        self.held: list[Held] = []

    async def submit(self, run: RunRef, groups: int, n: int, **about: object) -> None:
        """One batch for each purpose and priority."""
        name = "-".join(["b", *map(str, about.values())])
        told = spec(name, n=n, **about)
        batch = NewBatch(run, batch_ref(run, name), "digest", groups, groups * n, told.purpose, told.priority)
        packed = encode(told)
        made = [
            NewGroup(group_ref(run, f"{name}-{place}"), f"{place}", n, told.limits.total_ms, packed, b"")
            for place in range(groups)
        ]
        for at in range(0, groups, 64):
            assert set(await self.store.submit(batch, made[at : at + 64])) == {"stored"}

    async def step(self, ends: int = 2) -> None:
        """The oldest jobs end, workers fill their slots, admission fills the stage."""
        ending, self.held = self.held[:ends], self.held[ends:]
        if ending:
            made = [Finish(held, Outcome.COMPLETED, record(held.ref)) for held in ending]
            assert set(await self.store.finish(made)) == {"finished"}
            await self.queue.settle()
        await self.admission.turn()
        self.held += await self.queue.take(Stage.INIT, count=SLOTS - len(self.held)) if len(self.held) < SLOTS else []

    async def waiting(self, run: RunRef, purpose: Purpose | None = None) -> int:
        """Groups in its backlog."""
        low, high = {None: ("-inf", "+inf"), Purpose.EVAL: ("-inf", "(0"), Purpose.TRAIN: (0, "+inf")}[purpose]
        return int(await self.queue.command("ZCOUNT", self.queue.keys.backlog(run), low, high))

    async def in_flight(self) -> dict[RunRef, int]:
        return (await runs.usage(self.store, [])).jobs

    async def acknowledge(self, run: RunRef) -> int:
        found = await results.collect(self.store, run)
        return await results.acknowledge(self.store, run, [result.cursor for result in found])


@pytest.fixture
async def farm(settings: RedisSettings, keys: Keys) -> AsyncIterator[Farm]:
    redis, blocking = connect(settings), connect(settings)
    queue = Queue(redis, keys)
    await queue.prepare()
    about = {"stage": "init", "node": "n1", "slots": SLOTS, "busy": 0, "pid": 1, "started_ms": 1}
    await queue.command("HSET", keys.worker("w1"), *[each for pair in about.items() for each in pair])
    await queue.command("ZADD", keys.workers, 1 << 50, "w1")
    yield Farm(queue, Store(redis, keys, name="w1", waiting=blocking))
    await blocking.aclose()
    await redis.aclose()


async def test_tenants_and_their_runs_get_their_weights_parts_within_one_group(farm: Farm) -> None:
    await run_settings.set_tenant(farm.store, TenantId("b"), TenantSettings(weight=2))
    await runs.configure(farm.store, X, RunSettings(weight=3))
    sizes = {X: 4, Y: 8, Z: 2}
    for run, n in sizes.items():
        await farm.submit(run, 120, n)
    for _ in range(60):
        await farm.step(ends=4)
        got = {run: n * (120 - await farm.waiting(run)) for run, n in sizes.items()}
        assert abs(got[X] / 3 - got[Y]) <= 8
        assert abs((got[X] + got[Y]) - got[Z] / 2) <= 8
    assert min(got.values()) > 20
    on_stage = await farm.queue.command("XLEN", farm.queue.keys.stage(Stage.INIT))
    assert sum((await farm.in_flight()).values()) == on_stage, "queued and held"


async def test_quotas_hold_at_every_moment_and_the_run_says_which_one_it_waits_for(farm: Farm) -> None:
    await run_settings.set_tenant(farm.store, TenantId("b"), TenantSettings(max_jobs=5))
    await runs.configure(farm.store, X, RunSettings(max_jobs=6))
    await runs.configure(farm.store, Y, RunSettings(max_unacked_groups=2))
    for run, n in {X: 4, Y: 1, Z: 2}.items():
        await farm.submit(run, 30, n)
    for _ in range(12):
        await farm.step()
        in_flight = await farm.in_flight()
        assert in_flight.get(X, 0) <= 6
        assert in_flight.get(Z, 0) <= 5
        assert 30 - await farm.waiting(Y) <= 2
    x, y, z = await runs.look(farm.store, [X, Y, Z])
    assert x.why == f"{x.in_flight} of the run's at most 6 jobs are in flight, and its next group has 4"
    assert y.why.startswith("2 of at most 2 groups run or are not acknowledged: acknowledge results")
    assert z.why == f"{z.in_flight} of the tenant's at most 5 jobs are in flight, and its next group has 2"
    assert 30 - await farm.waiting(X) > 3, "the run continues as its jobs end"
    assert await farm.acknowledge(Y) == 2
    await farm.step()
    assert await farm.waiting(Y) == 26, "the run continues by itself"


async def test_a_quota_that_is_set_right_before_a_batch_holds_for_its_first_group(farm: Farm) -> None:
    await farm.step()
    await runs.configure(farm.store, X, RunSettings(max_unacked_groups=3))
    await farm.submit(X, 8, 1)
    await farm.step()
    assert await farm.waiting(X) == 5


async def test_bytes_that_nobody_acknowledges_stop_a_run_until_they_are_acknowledged(farm: Farm) -> None:
    await runs.configure(farm.store, Z, RunSettings(max_unacked_bytes=1))
    await farm.submit(Z, 200, 1)
    async with asyncio.timeout(90):
        while not (why := (await runs.look(farm.store, [Z]))[0].why).startswith("waits") or not farm.held:
            await farm.step(ends=0)
            assert "bytes" not in why
    await farm.step(ends=1)
    [stopped] = await runs.look(farm.store, [Z])
    assert "bytes of results are not acknowledged: acknowledge them, or raise max_unacked_bytes" in stopped.why
    before = await farm.waiting(Z)
    while farm.held:
        await farm.step(ends=SLOTS)
    assert await farm.waiting(Z) == before
    assert await farm.acknowledge(Z) == 200 - before
    await farm.step()
    assert await farm.waiting(Z) < before


@pytest.mark.parametrize("bounded", [True, False])
async def test_bytes_of_all_runs_of_a_tenant_stop_each_of_them(farm: Farm, bounded: bool) -> None:
    """The control: without the bound another run of the tenant is admitted."""
    name = TenantId(tenant_of(X))
    if bounded:
        await run_settings.set_tenant(farm.store, name, TenantSettings(max_unacked_bytes=1))
    await farm.submit(X, 1, 1)
    await farm.step()
    while farm.held:
        await farm.step(ends=SLOTS)
    await farm.submit(Y, 8, 1)
    await farm.step()
    [there] = await runs.look(farm.store, [Y])
    assert (there.backlog, "all runs of its tenant" in there.why) == ((8, True) if bounded else (0, False))
    assert await farm.acknowledge(X) == 1
    await farm.step()
    assert await farm.waiting(Y) == 0


async def test_a_quota_that_is_lifted_while_the_service_runs_holds_nobody_any_more(farm: Farm) -> None:
    await runs.configure(farm.store, X, RunSettings(max_jobs=1))
    await farm.submit(X, 4, 2)
    await farm.step()
    [status] = await runs.look(farm.store, [X])
    assert status.why == "its next group has 2 samples and the run's max_jobs is 1: raise it"
    await runs.configure(farm.store, X, RunSettings())
    async with asyncio.timeout(90):
        while await farm.waiting(X):
            await farm.step()


@pytest.mark.parametrize(("first", "second"), [(Purpose.TRAIN, Purpose.EVAL), (Purpose.EVAL, Purpose.TRAIN)])
async def test_neither_training_nor_evaluation_waits_until_the_other_is_through(
    farm: Farm, first: Purpose, second: Purpose
) -> None:
    """Whichever comes second has its share from then on, within one group of each."""
    share = {Purpose.EVAL: 0.25, Purpose.TRAIN: 0.75}
    size = {Purpose.EVAL: 1, Purpose.TRAIN: 4}
    await farm.submit(X, 100, size[first], purpose=first)
    for _ in range(5):
        await farm.step(ends=4)
    before = await farm.waiting(X, first)
    await farm.submit(X, 100, size[second], purpose=second)
    for _ in range(20):
        await farm.step(ends=4)
        got = {first: before - await farm.waiting(X, first), second: 100 - await farm.waiting(X, second)}
        had = {purpose: size[purpose] * groups / share[purpose] for purpose, groups in got.items()}
        assert abs(had[first] - had[second]) <= max(size[purpose] / share[purpose] for purpose in size) + 1e-9
    assert min(got.values()) > 2


async def test_nothing_is_left_of_what_quotas_count_when_everything_is_acknowledged(farm: Farm) -> None:
    for run in (X, Y, Z):
        await farm.submit(run, 5, 2)
    while (
        farm.held or await farm.in_flight() or await farm.waiting(X) or await farm.waiting(Y) or await farm.waiting(Z)
    ):
        await farm.step(ends=SLOTS)
    assert [await farm.acknowledge(run) for run in (X, Y, Z)] == [5, 5, 5]
    keys = farm.queue.keys
    assert await farm.queue.command("EXISTS", keys.in_flight, keys.unacked) == 0


async def test_settings_that_somebody_has_spoilt_count_as_defaults(farm: Farm) -> None:
    """Admission divides by weights: no stored text may stop it."""
    for text in ("{", '{"weight": 0}', '{"weight": "x"}', "[]"):
        await farm.queue.command("HSET", farm.queue.keys.run_settings, X, text)
        await farm.queue.command("HSET", farm.queue.keys.tenant_settings, "a", text)
        assert await run_settings.book(farm.store) == Book({}, {})
    await farm.submit(X, 1, 1)
    await farm.step()
    assert await farm.waiting(X) == 0


async def test_a_turn_costs_a_command_for_each_group_and_few_more(farm: Farm) -> None:
    """Beside the moves themselves: what is read of each waiting group, and what does not grow with their number."""
    await farm.submit(X, 16, 1)
    await farm.admission._look()
    await farm.admission.store.open_epoch()  # a process asks for it before its first call
    await farm.queue.command("CONFIG", "RESETSTAT")
    await farm.admission.turn()
    assert await farm.waiting(X) == 0
    text = (await farm.queue.command("INFO", "commandstats")).decode()
    calls = {
        line.partition(":")[0][8:]: int(line.partition("calls=")[2].partition(",")[0])
        for line in text.split()
        if "calls=" in line
    }
    fixed = {"zpopmin": 1, "zrange": 3, "xlen": 2, "hgetall": 4, "evalsha": 1}
    assert {name: calls.get(name) for name in fixed} == fixed
    assert calls["hmget"] == 16 + 16 + 1 + 1 + 1  # read, in the script; the run, where it is, the epoch
    calls.pop("eval", 0)  # of a server that has not had the script before
    calls.pop("client|setinfo", 0)  # of a connection that is opened
    calls.pop("del", 0)  # once in a process: what one of its name may have offered before
    assert sum(calls.values()) <= 16 * 9 + 26  # one of them counts the group's version up


async def test_a_run_whose_results_have_just_gone_has_no_consumer_group(farm: Farm) -> None:
    assert await consumers.delivered(farm.store, X) is None


async def test_settings_go_with_a_run_that_nobody_has_used_for_a_week_and_stay_while_it_holds_anything(
    farm: Farm,
) -> None:
    for run in (X, Y):
        await runs.configure(farm.store, run, RunSettings(weight=2))
    await farm.submit(Y, 1, 1)
    for run in (X, Y):
        await farm.queue.command("ZADD", farm.queue.keys.runs, 1, run)
    await Janitor(farm.store, lease_ms=1_000).turn()
    assert await runs.known(farm.store) == [Y]
    assert (await run_settings.book(farm.store)).runs == {Y: RunSettings(weight=2)}


async def test_a_run_stays_for_as_long_as_a_batch_of_it_waits_for_prompts(farm: Farm) -> None:
    batch, _ = reserved(farm.queue)
    await farm.store.submit(batch, [])
    await farm.queue.command("ZADD", farm.queue.keys.runs, 1, batch.run)
    await Janitor(farm.store, lease_ms=1_000).turn()
    assert await runs.known(farm.store) == [batch.run]


async def test_what_has_no_quota_begins_with_its_submission_only_while_nothing_waits(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admit, "IDLE_BLOCK_S", 0.01)
    queue, keys = farm.queue, farm.queue.keys
    await work.enroll(farm.store, {"sums": Schema()}, None)
    await queue.command("HSET", keys.worker("w1"), "families", digest_of(["sums"]))
    await farm.store.hold(ADMIT, lease_ms=60_000)

    async def answer(name: str, n: int, *, unbounded: bool = True) -> str:
        batch, made = queue.new(name, batch=f"b {name}", n=n)
        [said] = await farm.store.submit(batch, [made], unbounded=unbounded)
        return said

    assert await answer("before any look", 1) == "stored"
    await farm.admission.turn()  # it is admitted
    await farm.admission.turn()  # nothing waits
    assert await answer("first", 8) == "begun"
    assert await answer("bounded", 1, unbounded=False) == "stored"
    assert await answer("behind it", 1) == "stored"
    await farm.admission.turn()
    await farm.admission.turn()
    assert await answer("second", 6) == "stored", "no more than two entries for each slot"
    assert await farm.store.admit(RUN, [await queue.wanted(group_ref(RUN, "second"))]) == [6]
    assert await answer("waits", 1) == "stored"
    farm.admission._look_at = 0.0
    await farm.admission.turn()
    assert await queue.command("EXISTS", keys.offer) == 0
    assert await answer("last", 1) == "stored"


async def test_an_offer_that_lapses_is_taken_back_at_once(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """While room for results is short, no call begins that no turn has counted."""
    monkeypatch.setattr(admit, "IDLE_BLOCK_S", 0.01)
    queue, keys = farm.queue, farm.queue.keys
    await work.enroll(farm.store, {"sums": Schema()}, None)
    await queue.command("HSET", keys.worker("w1"), "families", digest_of(["sums"]))
    await farm.store.hold(ADMIT, lease_ms=60_000)
    await queue.command("SET", keys.offer, "of a process of this name before")
    farm.admission._look_at = 0.0
    room = [None, (admit.AMPLE - 1) * memory.FIRST_BYTES, None]
    monkeypatch.setattr(memory, "room", lambda *_: room[0])
    for there in (1, 0, 1):
        await farm.admission.turn()
        assert await queue.command("EXISTS", keys.offer) == there
        room.pop(0)
