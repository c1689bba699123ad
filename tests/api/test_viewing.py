"""What the web page reads: groups and their samples, batches, turns and tokens in pages, and the stream of changes."""

import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from api import live
from api.live import Follower
from prorl_mq.schema.items import Fail
from prorl_mq.schema.messages import Stage
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import Worker, announce_source, api, batch, closed

pytestmark = pytest.mark.anyio


async def test_the_overview_counts_what_waits_and_runs_in_each_stage(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch(groups=1, n=3))
    await worker.take(Stage.INIT)
    seen = (await client.get("/v1/overview")).json()
    assert [(each["stage"], each["queued"], each["running"]) for each in seen["stages"]] == [
        ("init", 2, 1), ("run", 0, 0), ("eval", 0, 0),
    ]  # fmt: skip
    assert [(node["node"], node["slots"], node["lane_queued"]) for node in seen["nodes"]] == [("n1", {"init": 64}, 0)]
    assert seen["rates"]["per_minute"].keys() == {"admit", "claim"}
    assert (seen["leased"], seen["backlog_groups"]) == (1, 0)


async def test_an_open_group_shows_each_sample_where_it_is(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch(groups=1, n=3))
    await worker.complete(0.5)
    held = await worker.take(Stage.INIT)
    page = (await client.get("/v1/runs/run/groups")).json()
    [group] = page["groups"]
    assert (group["state"], group["ended"], group["rewards"], group["task_id"]) == ("running", 1, [0.5], "t0")
    assert page["next"] is None
    seen = (await client.get("/v1/groups/run:batch-0")).json()
    assert [sample["state"] for sample in seen["samples"]] == ["completed", "leased", "queued"]
    assert await worker.store.fail([Fail(held, Stage.INIT, 60_000, "broken", counts=True)]) == ["delayed"]
    seen = (await client.get("/v1/groups/run:batch-0")).json()
    assert [(sample["state"], sample["attempt"]) for sample in seen["samples"]][1] == ("delayed", 1)


async def test_closed_groups_come_newest_first_in_pages_until_they_are_acknowledged(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await client.post("/v1/batches", json=batch(name="a", groups=2))
    await client.post("/v1/batches", json=batch(name="b", groups=1))
    for _ in range(3):
        await worker.complete()
    after, records = "0", []
    while len(records) < 3:
        page = await closed(client, "run", after=after)
        after, records = page["cursor"], records + page["results"]
    names = [each["group"]["group_id"] for each in records]
    first = (await client.get("/v1/runs/run/groups?state=closed&limit=2")).json()
    second = (await client.get(f"/v1/runs/run/groups?state=closed&limit=2&after={first['next']}")).json()
    assert [each["group_id"] for each in [*first["groups"], *second["groups"]]] == names[::-1]
    of_b = (await client.get("/v1/runs/run/groups?state=closed&batch=b")).json()
    assert [each["group_id"] for each in of_b["groups"]] == ["b-0"]
    assert (await client.get("/v1/groups/run:b-0")).json()["samples"][0]["record"]["reward"] == 1.0
    await client.post("/v1/runs/run/ack", json={"cursors": [each["cursor"] for each in records]})
    assert (await client.get("/v1/runs/run/groups?state=closed")).json() == {"groups": [], "next": None}
    assert (await client.get("/v1/groups/run:b-0")).status_code == 404


async def test_a_run_lists_its_newest_batches_first(client: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await client.post("/v1/batches", json=batch(name=name, dapo={"target_groups": 1} if name == "b" else None, n=2))
    found = (await client.get("/v1/runs/run/batches?limit=2")).json()["batches"]
    assert [(each["batch"]["batch_id"], "dapo" in each["batch"]) for each in found] == [("c", False), ("b", True)]
    assert (await client.get("/v1/runs/none/batches")).status_code == 404


async def test_turns_and_tokens_come_in_pieces_that_make_up_the_trajectory(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await client.post("/v1/batches", json=batch())
    await worker.complete()
    await closed(client, "run")
    turns = (await client.get("/v1/jobs/run:batch-0:0/turns")).json()
    assert (turns["turns"], turns["next"], turns["stop_reason"]) == ([], None, "answer")
    assert [segment["response_tokens"] for segment in turns["segments"]] == [2]
    pieces = [(await client.get(f"/v1/jobs/run:batch-0:0/tokens?start={at}&limit=1")).json() for at in (0, 1, 2)]
    assert [piece["ids"] for piece in pieces] == [[3], [4], []]
    assert [piece["logprobs"] for piece in pieces] == [[-0.25], [None], []]
    prompt = (await client.get("/v1/jobs/run:batch-0:0/tokens?part=prompt")).json()
    assert (prompt["ids"], prompt["loss_mask"]) == ([1, 2], [])
    assert (await client.get("/v1/jobs/run:batch-0:0/tokens?segment=1")).status_code == 404


async def test_a_tenant_sees_its_own_groups_and_pools_alone(settings: RedisSettings) -> None:
    await announce_source(settings)
    tokens = {name: hashlib.sha256(f"token-of-{name}".encode()).digest() for name in ("ann", "bob")}
    ann, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in tokens)
    async with api(settings, tokens=tokens, backends={"ann": ("192.0.2.0/24",)}) as client:
        await client.post("/v1/batches", json=batch(), headers=ann)
        await client.post("/v1/pools/policy/backends", json={"address": "http://192.0.2.1:1"}, headers=ann)
        assert (await client.get("/v1/groups/run:batch-0", headers=ann)).status_code == 200
        assert (await client.get("/v1/groups/run:batch-0", headers=bob)).status_code == 404
        assert (await client.get("/v1/runs/run/groups", headers=bob)).status_code == 404
        assert len((await client.get("/v1/pools", headers=ann)).json()["pools"]) == 1
        assert (await client.get("/v1/pools", headers=bob)).json() == {"pools": []}
        for path in ("overview", "watch", "pools", "groups/run:batch-0"):
            assert (await client.get(f"/v1/{path}")).status_code == 401
        assert (await client.get("/ui/")).status_code == 200


async def messages(answer: httpx.Response) -> AsyncIterator[tuple[str, str, dict[str, object]]]:
    """(id, kind, data) of each message of a stream."""
    found: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        else:
            if "event" in found:
                yield found.get("id", ""), found["event"], json.loads(found["data"])
            found = {}


async def test_changes_are_told_once_by_topic_and_again_after_the_last_event_id(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with (
        Worker(settings),
        started(settings) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        first = await _first_message(client, {})
        assert first[1] == "reset"
        async with client.stream("GET", "/v1/watch?topic=run:batch-1", headers={"Last-Event-ID": first[0]}) as answer:
            stream = messages(answer)
            await client.post("/v1/batches", json=batch(groups=2))
            found = await anext(each async for each in stream if each[1] == "changes")
        assert {change["job_id"] for change in found[2]["changes"]} == {"run:batch-1:0"}  # type: ignore[attr-defined]
        await client.post("/v1/runs/run/cancel")
        again = await _first_message(client, {"Last-Event-ID": found[0]})
        assert again[1] == "changes"
        assert {change["event"] for change in again[2]["changes"]} == {"cancelled"}  # type: ignore[attr-defined]


async def _first_message(client: httpx.AsyncClient, headers: dict[str, str]) -> tuple[str, str, dict[str, object]]:
    async with client.stream("GET", "/v1/watch", headers=headers) as answer:
        return await anext(each async for each in messages(answer) if each[1] != "tick")


async def test_a_viewer_that_is_too_far_behind_is_told_to_look_anew(client: httpx.AsyncClient, worker: Worker) -> None:
    follower = Follower(worker.store)
    await follower._read()
    start = follower.last
    assert start is not None
    await client.post("/v1/batches", json=batch(n=2))
    await worker.take(Stage.INIT)
    await follower._read()
    found = follower.since(start, "default")
    assert found is not None
    assert {line.split("\t")[2] for line in found} >= {"admit", "claim"}
    assert follower.since((start[0] - 1, 0), "default") is None
    assert follower.since(start, "other") == []
    assert follower.last is not None
    assert follower.since(follower.last, "default") == []


async def test_of_many_changes_the_newest_are_kept_and_who_saw_only_older_ones_looks_anew(
    client: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEPT", 10)
    follower = Follower(worker.store)
    await follower._read()
    seen: list[tuple[int, int]] = []
    for number in range(4):
        await client.post("/v1/batches", json=batch(name=f"b{number}", n=2))
        await worker.complete()
        await worker.complete()
        while follower.last != await follower._newest():
            await follower._read()
        assert follower.last is not None
        seen.append(follower.last)
    assert sum(entry.size for entry in follower._entries) <= 10
    assert follower.since(seen[0], "default") is None
    assert follower.since(seen[-1], "default") == []


async def test_what_viewers_share_is_made_once_for_a_change_and_bounded(
    client: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SHARED", 3)
    follower = Follower(worker.store)
    made: list[int] = []

    def make(key: int) -> int:
        return follower.shared(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    assert [make(key) for key in (1, 1, 2, 3, 4, 1)] == [1, 1, 2, 3, 4, 1]
    assert made == [1, 2, 3, 4, 1]
    await client.post("/v1/batches", json=batch())
    await follower._read()
    assert make(4) == 4
    assert made == [1, 2, 3, 4, 1, 4]
