"""A full Redis: new work stops first and says why, what runs completes, and both paths free memory by themselves."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.exceptions import OutOfMemoryError

from prorl_mq.client.patience import persistently
from prorl_mq.client.redis import RedisDoor
from prorl_mq.client.transport import ClosedGroup, Unreachable
from prorl_mq.duties.running import running
from prorl_mq.errors import Conflict, OverQuota
from prorl_mq.process import redis_server
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import RunRef, batch_ref, public, run_ref
from prorl_mq.schema.intake import Acknowledge, Configure, IntakeAnswer, decode_answer
from prorl_mq.schema.items import Advance, Finish
from prorl_mq.schema.messages import BatchRequest, Outcome, SampleRecord, Stage
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.strict import convert
from prorl_mq.service import submit
from prorl_mq.store import results, runs
from prorl_mq.store.server import acl, fitness
from prorl_mq.store.server.connection import RedisSettings, ask
from tests.api.service import Worker, announce_source, batch
from tests.conftest import binaries
from tests.support.service import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
LIMIT = 24 << 20
BLOB = 400_000
SMALLER = 300_000  # 16 of them, which are in flight at most, fit with all buffers into what admission leaves
GROUPS = 28  # of each of four runs: more than fits
HELD = re.compile("Redis uses |[0-9]+ bytes of results are not acknowledged")
USER = "prorl-trainer-default"


@pytest.fixture
async def small() -> AsyncIterator[RedisSettings]:
    """A server with little memory, and the maintenance loops."""
    [binary] = binaries().values()
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        async with redis_server.running(Path(name), binary=binary, options=["--maxmemory", str(LIMIT)]) as settings:
            await announce_source(settings)
            async with running(settings, name="api", lease_ms=60_000):
                yield settings


@pytest.fixture
async def worker(small: RedisSettings) -> AsyncIterator[Worker]:
    async with Worker(small) as each:
        await ask(each.redis, "HSET", each.keys.worker("worker-1"), "slots", 8)
        yield each


@pytest.fixture
async def door(small: RedisSettings, worker: Worker) -> AsyncIterator[RedisDoor]:
    """A trainer under its own Redis user."""
    assert USER in acl.users(tenants=["default"])
    await ask(worker.redis, "ACL", "SETUSER", USER, "on", ">secret")
    as_trainer = RedisSettings(url=small.url, namespace=small.namespace, username=USER, password="secret")
    made = RedisDoor(as_trainer, tenant="default", answer_s=30)
    yield made
    await made.aclose()


def request(run: str, name: str, groups: int) -> BatchRequest:
    return convert(batch(run, name, groups), BatchRequest)


async def complete(worker: Worker, size: int = BLOB) -> str:
    """One job from INIT to its end, with a trajectory that compresses to nothing less: its key."""
    held, data = await worker.in_run(), os.urandom(size)
    blob = worker.keys.blob(held.ref, held.token, "trajectory")
    await worker.store.put(blob, data, ttl_ms=600_000)
    assert await worker.store.advance([Advance(held, None, b"", blob, size)]) == ["advanced"]
    held = await worker.take(Stage.EVAL)
    record = SampleRecord(
        job_id=public(held.ref), index=0, outcome=Outcome.COMPLETED, reward=1.0, trajectory=blob, trajectory_bytes=size
    )
    assert await worker.store.finish([Finish(held, record.outcome, encode(record))]) == ["finished"]
    return blob


async def fill(worker: Worker) -> None:
    """To the last byte, with foreign data."""
    await ask(worker.redis, "SETRANGE", "foreign", LIMIT, b"x")
    with pytest.raises(OutOfMemoryError):
        await ask(worker.redis, "SET", "more", b"")


async def first_result(door: RedisDoor, run: str) -> ClosedGroup:
    while not (page := await door.page(run, "0", 10.0)):
        pass
    [closed] = page
    assert isinstance(closed, ClosedGroup)
    return closed


async def test_a_trainer_with_redis_alone_acknowledges_and_cancels_while_redis_is_full(
    worker: Worker, door: RedisDoor
) -> None:
    """XADD is refused then; XACK and SMOVE are not. Afterwards there is room, and work continues."""
    await door.submit(request("run", "read", 1))
    blob = await complete(worker)
    closed = await first_result(door, "run")
    await door.submit(request("run", "waits", 3))
    await door.submit(request("other", "waits", 3))
    await fill(worker)
    for refused in (door.submit(request("run", "late", 1)), door.cancel("job", "run:waits-0:0")):
        with pytest.raises(Unreachable, match="Redis is full and takes no message"):
            await refused
    assert await door.ack("run", [closed.cursor]) == 1
    assert await door.page("run", "0", 0.0) == []

    async def freed() -> bool:
        return not await worker.store.read("EXISTS", blob)

    await until(freed)
    assert await door.ack("run", [closed.cursor]) == 0
    assert (await door.cancel("batch", "run:waits")).id == "run:waits"
    assert (await door.batch("run:waits")).groups == 3
    assert (await door.cancel("run", "other")).state in {"cancelled", "cancelling"}
    assert await worker.store.read("ZCARD", worker.keys.backlog(run_ref("default", "other"))) == 0
    await ask(worker.redis, "DEL", "foreign")
    accepted = await persistently(lambda: door.submit(request("run", "late", 1)), patience_s=30)
    assert accepted.jobs == 1


async def test_a_message_that_a_full_redis_refuses_holds_up_none_behind_it(worker: Worker, door: RedisDoor) -> None:
    """The settings want memory, and the acknowledgement behind them frees some."""
    await door.submit(request("run", "read", 1))
    blob = await complete(worker)
    closed = await first_result(door, "run")
    intake = worker.keys.intake(run_ref("default", "run"))
    settings = Configure(reply="settings", settings=RunSettings(max_jobs=5))
    messages = (settings, Acknowledge(reply="ack", cursors=[closed.cursor]))
    at_once = worker.redis.pipeline(transaction=True)
    at_once.execute_command("SETRANGE", "foreign", LIMIT, b"x")
    for message in messages:
        at_once.execute_command("XADD", intake, "*", "m", encode(message))
    await at_once.execute()
    assert (await answer(worker, "run", "ack")).value == 1
    refused = await answer(worker, "run", "settings")
    assert (refused.status, refused.retry_after_ms) == (429, 2000)
    assert str(refused.error).startswith("Redis is full: acknowledge results")
    assert await worker.store.read("EXISTS", blob) == await worker.store.read("XLEN", intake) == 0


async def test_runs_are_not_listed_into_a_redis_that_is_nearly_full(worker: Worker, door: RedisDoor) -> None:
    """Messages of 30 bytes had answers of megabytes stored, past all limits."""
    await door.submit(request("run", "waits", 1))
    assert [each.run_id for each in await door.runs()] == ["run"]
    used = (await fitness.memory(worker.store)).used
    await ask(worker.redis, "SETRANGE", "foreign", int(0.88 * LIMIT) - used, b"x")

    async def refused() -> bool:
        try:
            await door.runs()
        except Unreachable as error:
            return "lists runs here below 85%" in str(error)
        return False  # what the service knows of its memory is a moment old

    await until(refused)


async def answer(worker: Worker, run: str, reply: str) -> IntakeAnswer:
    """Waited for."""
    async with asyncio.timeout(60):
        while True:
            rows = await worker.store.read("XRANGE", worker.keys.results(run_ref("default", run)), "-", "+")
            for said in [decode_answer(fields[1]) for _, fields in rows if fields[0] == b"a"]:
                if said.reply == reply:
                    return said
            await asyncio.sleep(0.02)


async def test_a_repeat_is_answered_though_new_work_is_refused(worker: Worker, door: RedisDoor) -> None:
    """A trainer that starts again submits its open batch before it reads the results that take the room."""
    open_batch, run = request("run", "open", 20), run_ref("default", "run")
    first = await door.submit(open_batch)
    while await runs.unacked_bytes(worker.store, run) <= LIMIT // 4:
        await complete(worker)
    assert await door.submit(open_batch) == msgspec.structs.replace(first, repeated=True)
    await fill(worker)
    assert (await submit.accept(worker.store, "default", open_batch)).repeated
    with pytest.raises(OverQuota, match="takes new work below 70%"):
        await submit.accept(worker.store, "default", request("run", "new", 1))
    with pytest.raises(Conflict, match="with another body"):
        await submit.accept(worker.store, "default", request("run", "open", 19))


async def test_a_batch_that_has_closed_cannot_be_cancelled_by_its_name_and_its_run_can(
    worker: Worker, door: RedisDoor
) -> None:
    run = run_ref("default", "run")
    await door.submit(request("run", "read", 1))
    assert await cancellable_in(worker, run) == {run, batch_ref(run, "read")}
    await complete(worker)
    await first_result(door, "run")
    assert await cancellable_in(worker, run) == {run}


async def cancellable_in(worker: Worker, run: RunRef) -> set[str]:
    return {name.decode() for name in await worker.store.read("SMEMBERS", worker.keys.cancellable(run))}


async def test_admission_stops_before_memory_is_full_and_says_so_and_everything_accepted_completes(
    worker: Worker,
) -> None:
    """Four runs whose results are more than Redis holds, and nobody acknowledges until nothing can begin."""
    refs = [run_ref("default", f"run{number}") for number in range(4)]
    for ref in refs:
        await submit.accept(worker.store, "default", request(ref.partition(":")[2], "b", GROUPS))
    peak, done = 0, 0

    async def held() -> bool:
        states = await runs.look(worker.store, refs)
        return not any(state.in_flight for state in states) and all(HELD.match(s.why) for s in states if s.backlog)

    seen: set[str] = set()
    while done < 4 * GROUPS:
        while done < 4 * GROUPS and not await held():
            if await worker.store.read("XLEN", worker.keys.stage(Stage.INIT)):
                await complete(worker, SMALLER)
                done += 1
            peak = max(peak, (await fitness.memory(worker.store)).used)
        seen |= {state.why.partition(" of ")[0] for state in await runs.look(worker.store, refs) if state.why}
        if done < 4 * GROUPS:
            await acknowledge_all(worker, refs)
    assert any(why.startswith("Redis uses ") for why in seen), seen
    assert peak <= LIMIT


async def acknowledge_all(worker: Worker, refs: list[RunRef]) -> None:
    for ref in refs:
        found = await results.collect(worker.store, ref, limit=1_000)
        assert await results.acknowledge(worker.store, ref, [each.cursor for each in found]) == len(found)
