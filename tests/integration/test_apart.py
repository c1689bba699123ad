"""Keys that a trainer may write by itself, of another kind or with other content: no other run waits for them."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from prorl_mq.duties import intake as duty
from prorl_mq.duties import load_weights, probe_backends, sweep
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.duties.intake import Intake
from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.duties.sweep import Janitor
from prorl_mq.errors import RedisUnavailable
from prorl_mq.rules.breaker import CLOSED
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import TRAINERS, decode_answer
from prorl_mq.schema.settings import RunSettings
from prorl_mq.store import policy, pools, results, runs
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store
from tests.worker.silence import silent

pytestmark = pytest.mark.anyio
NOBODY = "http://127.0.0.1:1"
GOOD, BAD = RunRef("good:r"), RunRef("bad:r")
QUESTION = encode({"type": "list_runs", "reply": "q"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when its messages are taken, however busy this machine is."""
    monkeypatch.setattr(duty, "PATIENCE_S", 60.0)


@pytest.fixture
async def store(settings: RedisSettings, keys: Keys) -> AsyncIterator[Store]:
    redis, waiting = connect(settings), connect(settings)
    made = Store(redis, keys, name="test", waiting=waiting)
    await ask(redis, "SADD", keys.intakes, GOOD, BAD)
    await ask(redis, "XADD", keys.intake(GOOD), "*", "m", QUESTION)
    for run in (BAD, GOOD):
        await runs.configure(made, run, RunSettings())
    yield made
    await redis.aclose()
    await waiting.aclose()


async def answered(store: Store, run: RunRef) -> list[str]:
    rows = await store.read("XRANGE", store.keys.results(run), "-", "+")
    return [decode_answer(fields[1]).reply for _, fields in rows]


async def left_out(store: Store, duty: str) -> int:
    return int(await store.read("HGET", store.keys.counters, f"left_out:{duty}") or 0)


async def test_names_that_are_not_text_or_no_runs_are_left_out(store: Store) -> None:
    await ask(store.redis, "SADD", store.keys.intakes, b"bad:\xff", "loose", "a:b:c")
    assert set(await results.intakes(store)) == {GOOD, BAD}


@pytest.mark.parametrize("key", ["intakes", "intakes:good"])
async def test_a_registry_of_another_kind_hides_its_own_runs_alone(store: Store, key: str) -> None:
    """Tenants that have a Redis user register their runs in a set of their own."""
    await ask(store.redis, "ACL", "SETUSER", f"{store.keys.namespace}-trainer-good", "on", "nopass", "+ping")
    try:
        if key == "intakes":
            await ask(store.redis, "SADD", store.keys.intakes_of("good"), "r", b"\xff", "good:r")
        await ask(store.redis, "DEL", f"{store.keys.prefix}{key}")
        await ask(store.redis, "XADD", f"{store.keys.prefix}{key}", "*", "m", "x")
        await Intake(store).turn()
    finally:
        await ask(store.redis, "ACL", "DELUSER", f"{store.keys.namespace}-trainer-good")
    assert (await answered(store, GOOD), await left_out(store, "intake")) == (["q"], 1)


@pytest.mark.parametrize("names", [["x" * 100_000], [f"r{number}" for number in range(results.NAMES + 1)]])
async def test_a_registry_that_holds_more_than_names_of_runs_is_not_read(store: Store, names: list[str]) -> None:
    """A tenant's Redis user may add what it likes, of half a gigabyte each, and every look would fetch that."""
    full = ["r" * 90 + f"{number:06d}" for number in range(4 * results.INTAKES)]
    await ask(store.redis, "SADD", store.keys.intakes_of("good"), *full, "\x1b[2J", "r" * 97)
    assert len(await results.intakes_of(store, "good")) >= results.INTAKES - 2
    await ask(store.redis, "SADD", store.keys.intakes_of("bad"), *names)
    with pytest.raises(ResponseError, match="no names of runs"):
        await results.intakes_of(store, "bad")
    assert await results.intakes_of(store, "bad") == [], "what nobody can read was removed"
    assert await results.intakes_of(store, "nobody") == []


async def test_an_intake_of_another_kind_is_left_out_and_the_others_are_answered(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged once with its run, however often it is met; once it is a stream again it has its turn."""
    caplog.set_level(logging.WARNING, "prorl_mq.duties")
    await ask(store.redis, "SET", store.keys.intake(BAD), "no stream")
    intake = Intake(store)
    for _ in range(3):
        await intake.turn()
    assert (await answered(store, GOOD), await left_out(store, "intake")) == (["q"], 1)
    assert [record.levelname for record in caplog.records if "'bad:r'" in record.getMessage()] == ["WARNING"]
    await ask(store.redis, "DEL", store.keys.intake(BAD))
    await ask(store.redis, "XADD", store.keys.intake(BAD), "*", "m", QUESTION)
    await Intake(store).turn()
    assert await answered(store, BAD) == ["q"]


async def test_a_message_that_is_too_large_is_refused_unread_and_the_next_is_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its fields count. It is answered under its entry's id: its reply's name was not read."""
    monkeypatch.setattr(duty, "MESSAGE_BYTES", 3 << 20)
    large = (await ask(store.redis, "XADD", store.keys.intake(BAD), "*", "m", b"", "x", bytes(3 << 20))).decode()
    await ask(store.redis, "XADD", store.keys.intake(BAD), "*", "m", QUESTION)
    intake = Intake(store)
    while await store.read("XLEN", store.keys.intake(BAD)):
        await intake.turn()
    [refusal, _] = [decode_answer(row[1]) for _, row in await store.read("XRANGE", store.keys.results(BAD), "-", "+")]
    assert (refusal.reply, refusal.status) == (large, 422)
    assert "the message has 3145730 bytes; 3145728 are allowed" in (refusal.error or "")
    assert (await answered(store, BAD), await answered(store, GOOD)) == ([large, "q"], ["q"])
    assert await left_out(store, "intake") == 0


async def test_messages_of_an_intake_that_holds_much_are_taken_in_their_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they are more than one message may be: each is weighed, and read by itself."""
    monkeypatch.setattr(duty, "MESSAGE_BYTES", 2 << 20)
    for reply in "abc":
        body = encode({"type": "list_runs", "reply": reply})
        await ask(store.redis, "XADD", store.keys.intake(BAD), "*", "m", body, "x", bytes(1_900_000))
    intake = Intake(store)
    while await store.read("XLEN", store.keys.intake(BAD)):
        await intake.turn()
    assert (await answered(store, BAD), await answered(store, GOOD)) == (["a", "b", "c"], ["q"])


async def test_a_message_that_does_not_arrive_delays_its_own_tenant_alone(
    store: Store, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty, "PATIENCE_S", 0.01)
    marker = b"never arrives"
    await ask(store.redis, "XADD", store.keys.intake(BAD), "*", "m", marker + bytes(2 << 20))
    async with silent(settings) as (proxy, through):
        redis, waiting = connect(through), connect(through)
        proxy.swallow(marker)
        intake = Intake(Store(redis, store.keys, name="test", waiting=waiting))
        async with asyncio.timeout(20):
            while not (proxy.swallowed and await answered(store, GOOD)):
                await intake.turn()
            await ask(store.redis, "XADD", store.keys.intake(GOOD), "*", "m", QUESTION)
            while await store.read("XLEN", store.keys.intake(GOOD)):
                await intake.turn()
        await intake.aclose()
        await redis.aclose()
        await waiting.aclose()
    assert (await answered(store, GOOD), await answered(store, BAD)) == (["q", "q"], [])


@pytest.mark.parametrize("fault", [RedisUnavailable("away"), OutOfMemoryError("full"), NoPermissionError("no")])
async def test_what_redis_does_to_everybody_is_raised_and_leaves_no_run_out(store: Store, fault: Exception) -> None:
    async def work() -> None:
        raise fault

    apart = Apart(store, "intake")
    with pytest.raises(type(fault)):
        await apart.do(GOOD, work)
    assert (apart.left_out(GOOD), await left_out(store, "intake")) == (False, 0)


async def test_results_of_another_kind_take_no_answer_and_the_others_get_theirs(store: Store) -> None:
    await ask(store.redis, "SET", store.keys.results(BAD), "no stream")
    await ask(store.redis, "XADD", store.keys.intake(BAD), "*", "m", QUESTION)
    await Intake(store).turn()
    assert (await answered(store, GOOD), await left_out(store, "intake")) == (["q"], 1)


@pytest.mark.parametrize("harm", ["kind", "content"])
async def test_results_that_cannot_be_swept_do_not_stop_the_sweep_of_others(store: Store, harm: str) -> None:
    """`bad` is looked at first."""
    bad, good = store.keys.results(BAD), store.keys.results(GOOD)
    if harm == "kind":
        await ask(store.redis, "SET", bad, "no stream")
    else:
        await ask(store.redis, "XADD", bad, "1-1", "r", "no record")
        await read_all(store, bad)
    await ask(store.redis, "XADD", good, "1-1", "a", "an old answer")
    await read_all(store, good)
    await Janitor(store, lease_ms=1_000).turn()
    assert (await store.read("XLEN", good), await left_out(store, "sweep")) == (0, 1)


async def read_all(store: Store, stream: str) -> None:
    """As a trainer does that reads with a consumer group."""
    await ask(store.redis, "XGROUP", "CREATE", stream, TRAINERS, "0")
    read = ("XREADGROUP", "GROUP", TRAINERS, "me", "STREAMS", stream, ">")
    [[_, entries]] = await ask(store.redis, *read)
    await ask(store.redis, "XACK", stream, TRAINERS, *(entry for entry, _ in entries))


async def test_many_runs_of_one_tenant_do_not_delay_what_another_has_acknowledged(store: Store) -> None:
    """Every look has a place for each tenant, however many runs one of them has made."""
    for number in range(4 * sweep.RUNS):
        await ask(store.redis, "ZADD", store.keys.runs, await store.now_ms(), f"bad:r{number}")
    janitor, stream = Janitor(store, lease_ms=1_000), store.keys.results(GOOD)
    await janitor.turn()
    await ask(store.redis, "XADD", stream, "1-1", "a", b"")
    await read_all(store, stream)
    await janitor.turn()
    assert await store.read("XLEN", stream) == 0


async def test_idle_runs_that_hold_results_do_not_keep_those_behind_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of runs whose results nobody comes for is passed over, and looked at again in the next round."""
    monkeypatch.setattr(sweep, "IDLE_AT_ONCE", 2)
    monkeypatch.setattr(sweep, "IDLE_LOOK_S", 0.0)
    for run in ("bad:a", "bad:b", "good:c"):
        await ask(store.redis, "ZADD", store.keys.runs, 0, run)
    for run in (RunRef("bad:a"), RunRef("bad:b")):
        await ask(store.redis, "XADD", store.keys.results(run), "*", "r", b"unread")
    janitor = Janitor(store, lease_ms=1_000)
    for _ in range(2):
        await janitor.turn()
    assert await runs.idle(store, for_ms=sweep.IDLE_RUN_MS, limit=9) == ["bad:a", "bad:b"]
    await ask(store.redis, "DEL", store.keys.results(RunRef("bad:a")))
    await janitor.turn()
    assert await runs.idle(store, for_ms=sweep.IDLE_RUN_MS, limit=9) == ["bad:b"]


async def test_pools_that_are_slow_to_read_delay_no_probe_of_another_tenant(
    store: Store, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_backends, "PATIENCE_S", 0.01)
    async with one_unread_pool(store, settings) as (waiting, control):
        health = BackendHealth(waiting, control, every_s=0.01)
        while (await pools.view(store, "good:p")).backends[NOBODY].breaker == CLOSED:
            await health.turn()
        assert waiting.faulted_at == -math.inf, "the other's pool is still being read"
        await health.aclose()


async def test_pools_that_are_slow_to_read_delay_no_weights_of_another_tenant(
    store: Store, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_weights, "IDLE_S", 0.01)
    async with one_unread_pool(store, settings) as (waiting, control):
        await store.announce("good:p", 7, "keep", "/weights/7")
        await store.hold(load_weights.DUTY, lease_ms=60_000)
        turn = asyncio.create_task(Weights(waiting, control).turn())
        while not await policy.progress(store, "good:p"):
            assert not turn.done()
            await asyncio.sleep(0.01)
        assert waiting.faulted_at == -math.inf, "the other's pool is still being read"
        turn.cancel()
        await asyncio.wait([turn])


@asynccontextmanager
async def one_unread_pool(store: Store, settings: RedisSettings) -> AsyncIterator[tuple[Store, BackendControl]]:
    """A pool of each of two tenants, and a store that gets no answer about the first one, however long it waits."""
    marker = "never arrives"
    await pools.add(store, "bad:p", NOBODY, model=marker)
    await pools.add(store, "good:p", NOBODY)
    async with silent(settings) as (proxy, through), asyncio.timeout(20):
        redis, control = connect(through), BackendControl()
        proxy.swallow(marker.encode())
        yield Store(redis, store.keys, name="test"), control
        assert proxy.swallowed
        await control.aclose()
        await redis.aclose()
