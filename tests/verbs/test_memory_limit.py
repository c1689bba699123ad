"""A server that is full: what runs completes and leaves, new work is refused, and nothing is harmed."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from prorl_mq.clock import monotonic
from prorl_mq.duties.reap import decide
from prorl_mq.errors import OverQuota
from prorl_mq.process import redis_server
from prorl_mq.rules.memory import LOG_SHARE, Memory
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import JobRef, batch_ref
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.schema.items import Advance, Logged
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Outcome, Stage, Task, Verdict
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import submit
from prorl_mq.service.cancel import cancel
from prorl_mq.store import bells, breakers, jobs, runs, work
from prorl_mq.store.direct import consumers
from prorl_mq.store.direct.consumers import Delivered
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import connect
from tests.conftest import binaries
from tests.support.queue import POOL, RUN, Queue, spec
from tests.support.service import until
from tests.verbs.test_renew import beat
from tests.verbs.test_thin import readers
from workers.process.turn_logs import TurnLogs
from workers.stages.job_log import FULL

pytestmark = pytest.mark.anyio

LIMIT = 24 << 20
REQUEST = BatchRequest(
    run_id="r", batch_id="late", groups=[GroupRequest(task=Task(task_id="t", data_source="sums", payload={"q": 1}))]
)


@pytest.fixture
async def small() -> AsyncIterator[Queue]:
    """A queue on a server of its own that has little memory."""
    [binary] = binaries().values()
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        async with redis_server.running(Path(name), binary=binary, options=["--maxmemory", str(LIMIT)]) as settings:
            client = connect(settings)
            made = Queue(client, Keys("t"))
            await made.prepare("n1")
            await work.enroll(made.store, {"sums": Schema(open_ended=True)}, None)
            yield made
            await client.aclose()


async def fill(queue: Queue, share: float = 1.0) -> None:
    """Foreign data up to a share of the memory; to fill all of it, the last of it goes past the limit."""
    number = 0
    while await fitness.pressure(queue.redis) < min(share, 0.95):
        number += 1
        await queue.command("SET", f"foreign:{number}", bytes(1 << 16))
    if share >= 1.0:
        await queue.command("SETRANGE", "foreign:last", 4 << 20, b"x")
        with pytest.raises(OutOfMemoryError):
            await queue.command("SET", "foreign:more", b"")


async def test_what_is_written_beside_the_verbs_fails_nobody(small: Queue) -> None:
    """A failed attempt ended by the refusal of its count, which hid its cause; a verdict's count cut its turn short."""
    await fill(small)
    seen = await breakers.failed(small.store, breakers.image("broken"), "no such image", None)
    assert (seen.open, seen.why) == (False, "no such image")
    await runs.count_left_out(small.store, "settle")
    await bells.ring_draw(small.store, batch_ref(RUN, "b"))
    assert await small.store.read("EXISTS", small.keys.counters, small.keys.draw_bell, small.keys.breakers) == 0


async def test_running_work_completes_and_is_acknowledged(small: Queue) -> None:
    await small.store.join(POOL, "http://b1", b"about it")
    await small.admitted(n=3, max_refills=3)
    await fill(small)
    first, second, third = await small.take(Stage.INIT)
    assert await beat(small, [first, second, third]) == ["held"] * 3
    moves = [Advance(each, node, b"c") for each, node in ((first, "n1"), (second, None), (third, None))]
    assert await small.store.advance(moves) == ["advanced"] * 3
    [on_lane] = await small.take(Stage.RUN, "n1")
    [failing, dying] = await small.take(Stage.RUN)
    assert (await small.store.assign(on_lane))[0] == b"assigned"
    blob = small.keys.blob(on_lane.ref, on_lane.token, "trajectory")
    await small.store.put(blob, bytes(200_000), ttl_ms=60_000)
    assert await small.store.advance([Advance(on_lane, None, b"c", blob, 200_000)]) == ["advanced"]
    assert await small.fail(failing) == "delayed"
    await small.command("ZREM", small.keys.leases, dying.ref)
    state, item = decide(await small.snapshot(dying.ref), spec(), leased=True)
    assert await small.store.reap(Verb.REAP, state, [item]) == ["requeued"]
    assert await small.store.promote([(failing.ref, small.keys.stage(Stage.INIT))]) == ["early"]
    for held in [*await small.take(Stage.EVAL), *await small.take(Stage.INIT)]:
        sized: dict[str, Any] = {"trajectory": blob, "trajectory_bytes": 200_000} if held.stage is Stage.EVAL else {}
        assert await small.finish(held, **sized) == "finished"
    await cancel(small.store, "job", failing.ref)
    await small.settle()
    [result] = await small.results()
    published = decode(result.record, GroupRecord)
    assert published.verdict is Verdict.CANCELLED
    assert sorted(sample.job_id for sample in published.samples) == ["r:g:0", "r:g:1", "r:g:2"]
    assert await fitness.pressure(small.redis) > 0.9
    assert await small.ack_all() == 1
    assert await small.command("EXISTS", blob) == 0
    assert await small.load() == 0
    assert await small.command("GET", small.keys.eval_bytes) == b"0"


async def test_a_lost_sample_is_refilled(small: Queue) -> None:
    await small.admitted(max_refills=1)
    await fill(small)
    [held] = await small.take(Stage.INIT)
    assert await small.finish(held, Outcome.INFRA_ERROR) == "finished"
    assert await small.settle() == ["refilled"]
    ref = await small.wanted(small.new()[1].ref)
    assert await small.store.admit(RUN, [ref]) == [1]
    [again] = await small.take(Stage.INIT)
    assert again.ref == JobRef("acme:r:g:1")


@pytest.mark.parametrize("share", [0.75, 1.0])
async def test_new_work_is_refused_with_a_time_to_come_again(small: Queue, share: float) -> None:
    """From 70 % on: the last third is for what runs."""
    await fill(small, share)
    before = await small.command("DBSIZE")
    with pytest.raises(OverQuota, match="takes new work below 70%") as refused:
        await submit.accept(small.store, "acme", REQUEST)
    assert refused.value.retry_after_ms > 0
    assert await small.command("DBSIZE") == before


@pytest.mark.parametrize("share", [0.75, 1.0])
async def test_logs_of_turns_have_no_room_above_their_share_and_can_be_given_up(small: Queue, share: float) -> None:
    """Of a server that is truly full; below, a record is logged."""
    await small.admitted()
    [held] = await small.take(Stage.INIT)
    assert await small.store.advance([Advance(held, "n1", b"c")]) == ["advanced"]
    [held] = await small.take(Stage.RUN, "n1")
    logs = TurnLogs(small.store)

    async def full() -> bool:  # it is asked now and then, and not for each record
        return (await fitness.memory(small.store)).share > LOG_SHARE

    logging = asyncio.create_task(logs.run())
    try:
        assert await logs.send(Logged(held, 0, b"t one")) == "logged"
        await fill(small, share)
        await until(full, within_s=10)
        both = [logs.send(Logged(held, 1, b"t two")), logs.send(Logged(held, 0, None))]
        assert await asyncio.gather(*both) == [FULL, "dropped"]
    finally:
        logging.cancel()
        await asyncio.wait({logging})
    assert await jobs.log(small.store, held.ref) == []
    assert await small.store.advance([Advance(held, None, b"c", "", 100)]) == ["advanced"], "it continues without one"


async def test_a_server_without_a_limit_says_what_its_host_has(small: Queue) -> None:
    await small.command("CONFIG", "SET", "maxmemory", 0)
    found = await fitness.memory(small.store)
    assert (found.limit, found.host > found.used) == (0, True)


async def test_a_submit_that_meets_a_server_which_has_just_become_full_is_refused_whole(small: Queue) -> None:
    """The last look at the memory may be a moment old."""
    await fill(small)
    batch, group = small.new()
    before = await small.command("DBSIZE")
    with pytest.raises(OverQuota):
        await small.store.submit(batch, [group])
    assert await small.command("DBSIZE") == before


async def test_room_again_means_work_again(small: Queue) -> None:
    await fill(small)
    await small.command("FLUSHALL", "SYNC")
    await small.prepare()
    await work.enroll(small.store, {"sums": Schema(open_ended=True)}, None)
    accepted = await submit.accept(small.store, "acme", REQUEST)
    assert accepted.jobs == 1


def large(tasks: int) -> BatchRequest:
    """A batch of `tasks` MiB, in parts of three groups."""
    payloads = [Task(task_id=f"t{at}", data_source="sums", payload={"q": "x" * (1 << 20)}) for at in range(tasks)]
    return BatchRequest(run_id="r", batch_id="large", groups=[GroupRequest(task=task, n=1) for task in payloads])


@pytest.mark.parametrize("by_script", [True, False], ids=["script", "control"])
async def test_a_full_redis_keeps_the_group_whose_consumers_are_too_many(small: Queue, by_script: bool) -> None:
    """The control begins it again as two commands, of which only the first is done: its trainer neither reads nor
    acknowledges any more.
    """
    await readers(small, 3)
    await fill(small)
    stream = small.keys.results(RUN)
    if by_script:
        assert await small.store.thin(RUN, most=1, last="3-1", waiting=3) == "begun"
    else:
        await small.command("XGROUP", "DESTROY", stream, TRAINERS)
        await consumers.create_if_room(small.store, RUN)
    there = await consumers.delivered(small.store, RUN)
    assert there == (Delivered("0-0", 0) if by_script else consumers.NO_GROUP)


async def test_a_batch_in_parts_that_has_no_room_stores_none_of_them(small: Queue) -> None:
    with pytest.raises(OverQuota, match="batch 'r:large' takes 30 MiB and Redis has"):
        await submit.accept(small.store, "acme", large(30))
    assert await small.command("EXISTS", small.keys.backlog(RUN), small.keys.batch(batch_ref(RUN, "large"))) == 0


async def test_a_batch_that_fills_redis_half_way_says_what_is_stored_and_is_completed_by_a_repeat(
    small: Queue,
) -> None:
    await fill(small, 0.6)
    small.store.memory = (Memory(0, LIMIT), monotonic() + 60)  # a look from before
    says = r"^\d+ of the 15 groups of batch 'r:large' are stored and run; .* Redis is full"
    with pytest.raises(OverQuota, match=says) as refusal:
        await submit.accept(small.store, "acme", large(15))
    stored = await small.command("ZCARD", small.keys.backlog(RUN))
    assert 0 < stored < 15
    assert str(refusal.value).startswith(f"{stored} of ")
    await small.command("CONFIG", "SET", "maxmemory", 4 * LIMIT)
    small.store.memory = (Memory(0, 4 * LIMIT), monotonic() + 60)
    accepted = await submit.accept(small.store, "acme", large(15))
    assert (len(accepted.groups), await small.command("ZCARD", small.keys.backlog(RUN))) == (15, 15)
