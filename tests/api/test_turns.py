"""The turns of a job over HTTP: from its log while it is in RUN, from its trajectory after that."""

import hashlib
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from prorl_mq.schema.codec import compress, encode
from prorl_mq.schema.items import Fail, Held, Logged
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.turns import (
    CHECKPOINT,
    SCHEMA,
    WORLD,
    CallResult,
    Checkpoint,
    LoggedCompletion,
    TurnResults,
    World,
    numbered,
    pack_tokens,
)
from prorl_mq.service.turn_pages import PAGE_BYTES
from prorl_mq.store import jobs
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.store import Store
from tests.agent import test_journal as journal
from tests.api.service import Worker, announce_source, api, batch, closed

pytestmark = pytest.mark.anyio
SANDBOX = WORLD + encode(World(announced=None, sandbox="s1"))
LOG = "/v1/jobs/run:batch-0:0/log"


async def write(worker: Worker, held: Held, records: Sequence[bytes], begin: int = 0) -> None:
    """What a worker logs of its turns, from a record on; in front of the first one its sandbox."""
    if not begin:
        await put(worker, held, 0, SANDBOX)
    for place, record in enumerate(records, begin):
        await put(worker, held, 1 + place, numbered(place, record))


async def put(worker: Worker, held: Held, place: int, record: bytes) -> None:
    assert await worker.store.log([Logged(held, place, record)]) == ["logged"]


def sampled(started_s: float, ids: Sequence[int] = (7, 8)) -> bytes:
    tokens, version = pack_tokens(ids, [-0.5] * len(ids)), ("1", "2")
    made = LoggedCompletion(SCHEMA, 3, b"", *tokens, "stop", None, "b", version, (), None, 0.25, started_s, 0.0, None)
    return compress(encode(made))


def answered(text: str) -> bytes:
    return compress(encode(TurnResults([CallResult(text, True, False, 0.5)], None, 0.0, 1.0)))


async def page(client: httpx.AsyncClient, **query: Any) -> Any:
    answer = await client.get(LOG, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_one_who_follows_a_rollout_to_its_end_sees_each_turn_once(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    log = journal.Log()
    ran = await journal.rollout(log, journal.World(), journal.Sampler(journal.TEXTS))
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    seen: list[Any] = []
    rollouts, written = set(), 0
    while written < len(log.records):
        await write(worker, held, log.records[written : written + 3], written)
        written = min(written + 3, len(log.records))
        for _ in range(2):
            found = await page(client, after=len(seen), limit=1)
            seen += found["turns"]
            rollouts.add(found["rollout"])
            assert (found["next"], found["complete"], found["note"]) == (len(seen), False, "")
        assert len(seen) == written // 2
        under_way = written % 2 == 1
        assert (found["under_way"] is not None) is under_way
    assert found["under_way"]["calls"] == []
    await worker.finish(held, trajectory=ran.trajectory)
    last = await page(client, after=len(seen))
    assert [turn["number"] for turn in last["turns"]] == [len(journal.TEXTS) - 1]
    assert {**last["turns"][0], "calls": []} == found["under_way"]
    seen += last["turns"]
    assert (last["next"], last["complete"], rollouts) == (len(journal.TEXTS), True, {last["rollout"]})
    every = await page(client)
    assert every["turns"] == seen
    assert [turn["ids"] for turn in seen] == [
        list(ran.trajectory.segments[0].response_ids[start:end]) for start, end in places(ran.trajectory)
    ]
    assert seen[1]["logprobs"] == [-0.5] * len(seen[1]["ids"])
    assert [call["result"] for call in seen[1]["calls"]] == [call.result for call in ran.trajectory.turns[1].tool_calls]
    assert [turn["number"] for turn in seen] == list(range(len(journal.TEXTS)))


def places(trajectory: Any) -> list[tuple[int, int]]:
    starts = [turn.prompt_tokens - len(trajectory.segments[0].prompt_ids) for turn in trajectory.turns]
    return [(start, start + turn.completion_tokens) for start, turn in zip(starts, trajectory.turns, strict=True)]


async def test_a_job_without_a_log_says_why_it_shows_no_turns(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch())
    found = await page(client)
    assert (found["turns"], found["rollout"], found["complete"], found["next"]) == ([], "", False, 0)
    held = await worker.in_run()
    assert "has logged no turn" in (await page(client))["note"]
    await worker.finish(held)
    found = await page(client, after=5)
    assert (found["note"], found["complete"], found["next"]) == ("its trajectory has no turns", True, 5)
    cursor = (await closed(client, "run"))["results"][0]["cursor"]
    await client.post("/v1/runs/run/ack", json={"cursors": [cursor]})
    assert (await client.get(LOG)).status_code == 404
    assert (await client.get("/v1/jobs/run:batch-0:7/log")).status_code == 404


async def test_a_rollout_that_begins_again_has_another_name(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    await write(worker, held, [sampled(0.5), answered("a"), sampled(1.5)])
    before = await page(client)
    assert ([turn["number"] for turn in before["turns"]], before["under_way"]["number"]) == ([0], 1)
    assert await worker.store.fail([Fail(held, Stage.INIT, 0, "broken", counts=True, forgets=True)]) == ["delayed"]
    assert "not begun" in (await page(client, after=1))["note"]
    held = await worker.in_run()
    await write(worker, held, [sampled(0.75)])
    after = await page(client, after=1)
    assert (after["turns"], after["under_way"]) == ([], None)
    assert after["rollout"] not in {"", before["rollout"]}
    assert (await page(client))["under_way"]["spans"] == [
        {"start": 0, "end": 2, "backend": "b", "version": ["1", "2"], "raw_logprobs": False}
    ]


async def test_a_rollout_that_continues_in_a_new_sandbox_is_the_same(client: httpx.AsyncClient, worker: Worker) -> None:
    """Its turns are shown while INIT makes the sandbox, and where a record of that lies between them."""
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    await write(worker, held, [sampled(0.5), answered("a"), sampled(1.5), answered("b")])
    before = await page(client)
    assert await worker.store.fail([Fail(held, Stage.INIT, 0, "lost", counts=False)]) == ["delayed"]
    assert await page(client) == before
    held = await worker.in_run()
    for place, whole in ((5, False), (6, True)):
        await put(worker, held, place, WORLD + encode(World(None, "s2", whole)))
    for number, record in enumerate([sampled(2.5), answered("c"), sampled(3.5)], 4):
        await put(worker, held, number + 3, numbered(number, record))
    for after in range(4):
        found = await page(client, after=after)
        assert [(turn["number"], turn["calls"][0]["result"]) for turn in found["turns"]] == [
            (number, "abc"[number]) for number in range(after, 3)
        ]
        assert (found["under_way"]["number"], found["rollout"]) == (3, before["rollout"])


async def test_notes_of_checkpoints_are_no_turns(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    await put(worker, held, 0, SANDBOX)
    place = 0
    for turn in range(9):
        turns = (numbered(2 * turn, sampled(turn)), numbered(2 * turn + 1, answered(str(turn))))
        for record in (*turns, CHECKPOINT + encode(Checkpoint(turn, "digest"))):
            await put(worker, held, place := place + 1, record)
    for after in range(10):
        found = await page(client, after=after)
        assert [turn["calls"][0]["result"] for turn in found["turns"]] == [str(number) for number in range(after, 9)]


async def test_records_of_two_rollouts_are_never_read_as_one(client: httpx.AsyncClient, worker: Worker) -> None:
    """The job begins again between two reads of its log."""
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    await write(worker, held, [sampled(0.5), answered("a")] * 12)
    reads: list[str] = []

    class Slow(Store):
        async def read(self, *command: str | int | bytes) -> Any:
            found = await super().read(*command)
            if len(reads) == 1:
                await worker.store.fail([Fail(held, Stage.INIT, 0, "broken", counts=True, forgets=True)])
                await write(worker, await worker.in_run(), [sampled(0.75), answered("b")] * 12)
            reads.append(str(command[0]))
            return found

    slow = Slow(worker.redis, worker.keys, name="slow")
    assert await jobs.log_part(slow, held.ref, 0, 24, most_bytes=PAGE_BYTES) is None
    part = await jobs.log_part(slow, held.ref, 0, 24, most_bytes=PAGE_BYTES)
    assert part is not None
    assert len(part.records) == 24


async def test_a_page_is_bounded_by_bytes_and_has_one_turn_at_least(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    large = "x" * (PAGE_BYTES + 1)
    sizes = [large, "s", "s", large, *["s"] * 8]
    records = [record for text in sizes for record in (sampled(1.0), answered(text))]
    await write(worker, held, [*records, sampled(2.0)])
    counts, after, under_way = [], 0, None
    while under_way is None:
        found = await page(client, after=after, limit=50)
        counts.append(len(found["turns"]))
        after, under_way = found["next"], found["under_way"]
    assert (counts, after, under_way["number"]) == ([1, 2, 1, 8], 12, 12)
    assert (await client.get(LOG, params={"limit": 51})).status_code == 422


ODD = LoggedCompletion(SCHEMA, 3, b"", b"12345", b"12345", "stop", None, "b", None, (), None, 0.0, 0.0, 0.0, None)


@pytest.mark.parametrize(
    "record",
    [
        compress(encode([9])),
        compress(encode(ODD)),
        compress(encode(replace(ODD, ids=b"12345678", logprobs=bytes(24)))),
        compress(bytes(80 << 20)),
        compress(b"x" * 1000)[:-9],
    ],
    ids=["another release", "odd tokens", "other log-probabilities", "zeros", "cut"],
)
async def test_records_that_cannot_be_read_are_left_for_the_end_of_run(
    client: httpx.AsyncClient, worker: Worker, record: bytes
) -> None:
    await client.post("/v1/batches", json=batch())
    held = await worker.in_run()
    await write(worker, held, [record])
    found = await page(client)
    assert found["turns"] == []
    assert "cannot be read" in found["note"] or "2 tokens and 3 log-probabilities" in found["note"]
    assert "when RUN has ended" in found["note"]


async def test_a_tenant_sees_the_turns_of_its_own_jobs_alone(settings: RedisSettings) -> None:
    await announce_source(settings)
    tokens = {name: hashlib.sha256(f"token-of-{name}".encode()).digest() for name in ("ann", "bob")}
    ann, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in tokens)
    async with api(settings, tokens=tokens) as client, Worker(settings) as worker:
        await client.post("/v1/batches", json=batch(), headers=ann)
        await write(worker, await worker.in_run(), [sampled(1.0)])
        assert (await client.get(LOG, headers=ann)).json()["under_way"]["ids"] == [7, 8]
        assert (await client.get(LOG, headers=bob)).status_code == 404
        assert (await client.get(LOG)).status_code == 401
