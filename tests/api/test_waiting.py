"""Requests that wait: how many there may be, what they cost, and that one does not keep another from its answer."""

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from api import new_results
from api.places import Places
from api.problems import Problem
from api.service import Service
from prorl_mq.schema.ids import TenantId, run_ref
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from tests.api.service import announce_source, api, batch

pytestmark = pytest.mark.anyio

POLLS, RUNS = 300, 60
ANN, BOB = TenantId("ann"), TenantId("bob")


def service_of(client: httpx.AsyncClient) -> Service:
    service: Service = client._transport.app.state.service  # type: ignore[attr-defined]
    return service


async def waiting(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(20):
        while sum(len(run.requests) for run in _runs(client)) < count:
            await asyncio.sleep(0.01)


def _runs(client: httpx.AsyncClient) -> list[Any]:
    return [run for reader in service_of(client).new_results._readers for run in reader.waiting.values()]


async def test_hundreds_of_polls_wait_on_a_few_connections_and_each_is_answered(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with api(settings) as client, asyncio.TaskGroup() as tasks:
        for number in range(RUNS):
            await client.post("/v1/batches", json=batch(run=f"r{number}"))
        before = await _connections(settings)
        polls = [tasks.create_task(client.get(f"/v1/runs/r{number % RUNS}/results?wait=50")) for number in range(POLLS)]
        await waiting(client, POLLS)
        assert await _connections(settings) - before <= new_results.CONNECTIONS + 32  # of pools that fill up
        for number in range(RUNS):
            await client.post(f"/v1/runs/r{number}/cancel")
        async with asyncio.timeout(40):
            pages = [(await poll).json()["results"] for poll in polls]
        assert [len(page) for page in pages] == [1] * POLLS
        assert service_of(client).polls.free == service_of(client).polls.count


async def _connections(settings: RedisSettings) -> int:
    redis = connect(settings)
    try:
        return len((await ask(redis, "CLIENT", "LIST")).splitlines())
    finally:
        await redis.aclose()


async def test_a_run_that_cannot_be_read_keeps_no_other_from_its_results(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who may write a run's stream has made something else of it: a read of several streams fails as a whole."""
    monkeypatch.setattr(new_results, "CONNECTIONS", 1)
    await announce_source(settings)
    redis = connect(settings)
    async with api(settings) as client, asyncio.TaskGroup() as tasks:
        for run in ("good", "bad"):
            await client.post("/v1/batches", json=batch(run=run))
        polls = [tasks.create_task(client.get(f"/v1/runs/{run}/results?wait=25")) for run in ("good", "bad")]
        await waiting(client, 2)
        await ask(redis, "SET", Keys(settings.namespace).results(run_ref("default", "bad")), "no stream")
        third = tasks.create_task(client.get("/v1/runs/good/results?wait=25"))
        await waiting(client, 2)
        await client.post("/v1/runs/good/cancel")
        async with asyncio.timeout(20):
            good, bad, third_answer = [await each for each in (*polls, third)]
        assert [len(answer.json()["results"]) for answer in (good, third_answer)] == [1, 1]
        assert bad.status_code == 500 or bad.json()["results"] == []
    await redis.aclose()


async def test_a_poll_that_has_an_older_cursor_than_those_that_wait_is_told(settings: RedisSettings) -> None:
    """A cursor may be of a future that a restart of Redis has taken back: it waits beside those that are true."""
    await announce_source(settings)
    async with api(settings) as client, asyncio.TaskGroup() as tasks:
        await client.post("/v1/batches", json=batch())
        later = tasks.create_task(client.get(f"/v1/runs/run/results?wait=3&after={1 << 50}-0"))
        await waiting(client, 1)
        poll = tasks.create_task(client.get("/v1/runs/run/results?wait=25"))
        await waiting(client, 2)
        await client.post("/v1/runs/run/cancel")
        assert len((await poll).json()["results"]) == 1
        assert (await later).json()["results"] == []


async def test_a_poll_passes_answers_to_messages_which_are_no_results(settings: RedisSettings) -> None:
    await announce_source(settings)
    redis = connect(settings)
    async with api(settings) as client:
        await client.post("/v1/batches", json=batch())
        entry = await ask(redis, "XADD", Keys(settings.namespace).results(run_ref("default", "run")), "*", "a", "x")
        page = (await client.get("/v1/runs/run/results?wait=0.2")).json()
        assert page == {"results": [], "cursor": entry.decode()}
    await redis.aclose()


async def test_an_outage_of_redis_answers_the_polls(settings: RedisSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    await announce_source(settings)
    async with api(settings, outage_ms=100) as client, asyncio.TaskGroup() as tasks:
        await client.post("/v1/batches", json=batch())
        poll = tasks.create_task(client.get("/v1/runs/run/results?wait=25"))
        await waiting(client, 1)

        async def away(*_: object, **__: object) -> None:
            raise ConnectionError("away")

        monkeypatch.setattr("prorl_mq.store.core.ask", away)
        for reader in service_of(client).new_results._readers:
            if reader._read is not None:
                reader._read.cancel()
        async with asyncio.timeout(20):
            assert (await poll).status_code == 503


def test_a_tenant_that_takes_all_leaves_a_quarter_to_those_who_hold_less_than_their_share() -> None:
    places = Places(16, tenants=4, what="requests wait at")
    for _ in range(12):
        places.take(ANN)
    with pytest.raises(Problem, match="12 requests wait at this process, 12 of them yours"):
        places.take(ANN)
    for _ in range(4):
        places.take(BOB)
    with pytest.raises(Problem, match="16 requests"):
        places.take(BOB)
    for tenant in [ANN] * 12 + [BOB] * 4:
        places.give(tenant)
    assert places.free == 16


async def test_a_tenant_that_waits_everywhere_keeps_no_other_from_its_results(settings: RedisSettings) -> None:
    tokens = {name: hashlib.sha256(name.encode()).digest() for name in (ANN, BOB)}
    ann, bob = ({"Authorization": f"Bearer {name}"} for name in (ANN, BOB))
    await announce_source(settings)
    async with api(settings, tokens=tokens) as client, asyncio.TaskGroup() as tasks:
        service_of(client).polls = Places(8, tenants=2, what="requests wait for results at")
        for headers in (ann, bob):
            assert (await client.post("/v1/batches", json=batch(), headers=headers)).status_code == 202
        path = "/v1/runs/run/results?wait=50"
        polls = [tasks.create_task(client.get(path, headers=ann)) for _ in range(6)]
        await waiting(client, 6)
        refused = await client.get(path, headers=ann)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        theirs = tasks.create_task(client.get(path, headers=bob))
        await waiting(client, 7)
        await client.post("/v1/runs/run/cancel", headers=bob)
        async with asyncio.timeout(40):
            assert len((await theirs).json()["results"]) == 1
        await client.post("/v1/runs/run/cancel", headers=ann)
        async with asyncio.timeout(40):
            assert [(await poll).status_code for poll in polls] == [200] * 6


def test_one_tenant_may_have_all_places() -> None:
    places = Places(2, tenants=0, what="requests wait at")
    for _ in range(2):
        places.take(ANN)
    assert places.free == 0


async def test_a_stream_gives_its_place_back(settings: RedisSettings) -> None:
    tokens = {name: hashlib.sha256(name.encode()).digest() for name in ("ann", "bob")}
    async with api(settings, tokens=tokens) as client:
        streams = service_of(client).streams = Places(1, tenants=1, what="event streams come from")
        streams.take(ANN)
        answer = await client.get("/v1/watch?seconds=0", headers={"Authorization": "Bearer ann"})
        assert (answer.status_code, "1 event streams" in answer.json()["detail"]) == (429, True)
        streams.give(ANN)
        for _ in range(2):
            answer = await client.get("/v1/watch?seconds=0", headers={"Authorization": "Bearer ann"})
            assert (answer.status_code, streams.free) == (200, 1)
