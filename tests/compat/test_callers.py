"""Callers that come back, retry, leave, cancel, and share a server: each job has one owner and one end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from prorl_mq.schema.codec import decode_any
from prorl_mq.schema.ids import group_of
from prorl_mq.schema.items import Held
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import SOURCE, Worker, announce_source, api, batch, compat
from tests.compat.calls import answered, call, counted, start

pytestmark = pytest.mark.anyio


@pytest.fixture
async def other(settings: RedisSettings, client: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """The same client after the process was replaced by another."""
    del client
    async with compat(settings) as each:
        yield each


async def left(client: httpx.AsyncClient, worker: Worker, body: dict[str, Any]) -> Held:
    """A call whose caller has gone while its job is in RUN; the job."""
    waiting = asyncio.create_task(client.post("/process", json=body))
    held = await worker.in_run()
    waiting.cancel()
    await asyncio.wait({waiting})
    return held


async def test_a_caller_that_keeps_its_id_gets_its_job_from_another_process(
    client: httpx.AsyncClient, other: httpx.AsyncClient, worker: Worker
) -> None:
    await start(client)
    held = await left(client, worker, call())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        again = tasks.create_task(other.post("/process", json=call()))
        await worker.finish(held, 0.75)
    assert again.result().json()["reward"] == 0.75
    assert (await other.get("/status")).json()["jobs"] == 0


async def test_a_result_that_came_while_nobody_waited_is_there_for_its_caller(
    client: httpx.AsyncClient, other: httpx.AsyncClient, worker: Worker
) -> None:
    await start(client)
    held = await left(client, worker, call())
    await worker.finish(held, 0.25)
    await counted(client, jobs=0)
    async with asyncio.timeout(60):
        assert (await other.post("/process", json=call())).json()["reward"] == 0.25


async def test_a_retry_under_a_new_id_ends_the_first_job_before_its_own_begins(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await start(client)
    held = await left(client, worker, call("first"))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        again = tasks.create_task(client.post("/process", json=call("second")))
        await worker.stop(held)
        await worker.complete(0.5)
    assert (again.result().json()["reward"], again.result().json()["job_id"]) == (0.5, "second")


async def test_a_job_of_another_sample_is_left_alone(client: httpx.AsyncClient, worker: Worker) -> None:
    await start(client)
    held = await left(client, worker, call("first", trajectory=0))
    assert (await answered(client, worker, call("second", trajectory=1)))["success"]
    await worker.finish(held, 1.0)


async def test_two_callers_with_one_id_and_body_get_a_job_each(client: httpx.AsyncClient, worker: Worker) -> None:
    """An adapter that sends the instance's name as the id must not have its repeats share one result."""
    await start(client)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(client.post("/process", json=call())) for _ in range(2)]
        await worker.complete(0.25)
        await worker.complete(0.75)
    assert sorted(each.result().json()["reward"] for each in both) == [0.25, 0.75]


async def test_an_id_that_was_answered_or_has_another_body_is_a_new_job(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await start(client)
    assert (await answered(client, worker, call(), reward=0.25))["reward"] == 0.25
    assert (await answered(client, worker, call(), reward=0.5))["reward"] == 0.5
    assert (await answered(client, worker, call(seed=1), reward=0.75))["reward"] == 0.75
    unnamed = await answered(client, worker, call(None))
    assert len(unnamed["job_id"]) == 36


async def test_a_cancel_answers_when_the_job_is_dead(client: httpx.AsyncClient, worker: Worker) -> None:
    await start(client)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.post("/process", json=call()))
        held = await worker.in_run()
        cancelling = tasks.create_task(client.post("/cancel", json={"job_id": "job"}))
        await worker.stop(held)
    assert cancelling.result().json() == {"status": "Cancel requested for job job"}
    found = waiting.result().json()
    told = ("success", "resolved", "error", "critical_error", "filter", "messages", "reward")
    assert [found[name] for name in told] == [False, False, "Job cancelled", "run", True, [], None]
    unknown = await client.post("/cancel", json={"job_id": "nobody"})
    assert (unknown.status_code, unknown.json()) == (200, {"status": "Cancel requested for job nobody"})


async def test_a_stop_ends_what_its_client_started_and_nothing_else(
    client: httpx.AsyncClient, worker: Worker, settings: RedisSettings
) -> None:
    """Neither another client's job, nor the tenant's own by the native routes."""
    await start(client)
    await start(client, "/clients/other")
    async with api(settings, name="native") as native:
        await native.post("/v1/batches", json=batch("mine"))
        mine = await worker.in_run()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            theirs = tasks.create_task(client.post("/clients/other/process", json=call()))
            kept = await worker.in_run()
            ours = tasks.create_task(client.post("/process", json=call()))
            held = await worker.in_run()
            stopping = tasks.create_task(client.post("/stop"))
            await worker.stop(held)
            await stopping
            await worker.finish(kept, 1.0)
        assert ours.result().status_code == 500
        assert theirs.result().json()["resolved"] is True
        assert (await native.get("/v1/jobs/mine:batch-0:0")).json()["state"] == "leased"
        await worker.finish(mine, 1.0)


async def test_nothing_is_left_of_jobs_that_were_answered_or_stopped(client: httpx.AsyncClient, worker: Worker) -> None:
    await start(client)
    await answered(client, worker, call("a"))
    held = await left(client, worker, call("b", trajectory=1))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.post("/stop"))
        await worker.stop(held)
    keys = [key.decode() for key in await worker.store.read("KEYS", "*prorl-*")]
    assert {key.split(":")[1] for key in keys} <= {"run", "pool", "job", "results"}, keys
    assert [await worker.store.read("XLEN", key) for key in keys if ":results:" in key] == [0]  # goes with its run


async def test_answers_of_the_task_are_sealed_and_unknown_columns_dropped(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await start(client)
    held = await left(client, worker, call())
    group = group_of(held.ref)
    spec = decode_any(await worker.store.read("GET", worker.keys.open(group)))
    sealed = decode_any(await worker.store.read("GET", worker.keys.sealed(group)))
    assert (spec["payload"], sealed, spec["data_source"]) == ({"question": "?"}, {"answer": "!"}, SOURCE)
    assert (spec["sampling"]["max_turns"], spec["sampling"]["max_context_tokens"]) == (4, 32768)
    await worker.finish(held, 1.0)


async def test_only_the_given_addresses_are_served(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with compat(settings, allowed=("10.1.0.0/16",)) as client:
        answer = await client.post("/start")
        assert (answer.status_code, answer.json()["detail"][:26]) == (403, "127.0.0.1 is not among the")
