"""Every wrong request is answered by a problem document that says what to do."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.process import redis_server
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.api.process import started
from tests.api.service import announce_source, api, batch

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert {"type", "title", "detail"} <= set(document)
    return document


async def test_an_unknown_field_is_refused_with_its_nearest_name(client: httpx.AsyncClient) -> None:
    body = batch()
    body["groups"][0]["task"]["payloads"] = {}
    said = problem(await client.post("/v1/batches", json=body), 422)
    assert (said["field"], said["nearest"]) == ("$.groups[0].task.payloads", "payload")


async def test_a_missing_field_is_named_with_its_path(client: httpx.AsyncClient) -> None:
    body = batch()
    del body["groups"][0]["task"]["data_source"]
    assert problem(await client.post("/v1/batches", json=body), 422)["field"] == "$.groups[0].task.data_source"


async def test_a_wrong_type_is_named_with_its_path(client: httpx.AsyncClient) -> None:
    body = batch()
    body["groups"][0]["n"] = "8"
    assert problem(await client.post("/v1/batches", json=body), 422)["field"] == "$.groups[0].n"


async def test_an_unknown_data_source_names_the_nearest(client: httpx.AsyncClient) -> None:
    body = batch()
    body["groups"][0]["task"]["data_source"] = "ecko"
    assert "'echo'" in problem(await client.post("/v1/batches", json=body), 422)["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'"\\ud800"', b"NaN", b"[" * 200_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"run_id": 1e999}', b'{"\\u0000": 1}',
    ],
    ids=["empty", "cut", "array", "null", "no utf-8", "surrogate", "nan", "brackets", "deep", "infinite", "nul"],
)  # fmt: skip
async def test_a_body_that_is_no_batch_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    problem(await client.post("/v1/batches", content=body, headers=JSON), 422)


async def test_deep_free_form_data_is_refused(client: httpx.AsyncClient) -> None:
    body = batch()
    body["groups"][0]["task"]["payload"]["question"] = json.loads("[" * 100 + "]" * 100)
    assert "nested" in problem(await client.post("/v1/batches", json=body), 422)["detail"]


async def test_integers_that_no_stream_can_carry_are_refused(client: httpx.AsyncClient) -> None:
    body = batch(sampling={"seed": 2**80})
    assert "64 bits" in problem(await client.post("/v1/batches", json=body), 422)["detail"]


@pytest.mark.parametrize("name", ["a:b", "a\n", "", "x" * 97, "ä"])
async def test_a_name_with_other_characters_is_refused(client: httpx.AsyncClient, name: str) -> None:
    assert problem(await client.post("/v1/batches", json=batch(run=name)), 422)["field"] == "$.run_id"


async def test_another_content_type_is_refused(client: httpx.AsyncClient) -> None:
    problem(await client.post("/v1/batches", content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    problem(await client.post("/v1/batches", content=b"{}"), 415)


async def test_a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not(settings: RedisSettings) -> None:
    async def pieces() -> Any:
        for _ in range(64):
            yield b" " * 1024

    async with api(settings, max_body_bytes=16 * 1024) as client:
        problem(await client.post("/v1/batches", content=b" " * 64 * 1024, headers=JSON), 413)
        problem(await client.post("/v1/batches", content=pieces(), headers=JSON), 413)


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/v1/batches/", "/v1/batches/run", "/v1/batches/run:none", "/v1/jobs/run:g:00", "/v1/jobs/run:g:x",
     "/v1/jobs/%F0%28", "/v1/jobs/run:g:1/trajectory", "/v1/jobs/a%2Fb:g:1", "/v1/runs/none/results",
     "/v1/pools/a%0A/backends"],
)  # fmt: skip
async def test_what_there_is_not_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    problem(await client.get(path), 404)


async def test_a_cancel_of_what_there_is_not_is_not_found(client: httpx.AsyncClient) -> None:
    for path in ("jobs/a:b:1", "groups/a:b", "batches/a:b", "runs/a"):
        problem(await client.post(f"/v1/{path}/cancel"), 404)


async def test_another_method_is_refused_with_those_that_there_are(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/pools/policy/backends")
    assert set(answer.headers["allow"].replace(" ", "").split(",")) >= {"GET", "POST", "DELETE"}
    problem(answer, 405)


@pytest.mark.parametrize(
    ("query", "name"),
    [("wait=x", "wait"), ("wait=nan", "wait"), ("wait=-1", "wait"), ("wait=1e9", "wait"), ("limit=0", "limit"),
     ("limit=1.5", "limit"), ("after=x", "after"), ("after=99999999999999999999-1", "after"), ("aftr=1", "aftr"),
     ("wait=0&wait=1", "wait")],
)  # fmt: skip
async def test_a_wrong_parameter_is_named(client: httpx.AsyncClient, query: str, name: str) -> None:
    await client.post("/v1/batches", json=batch())
    assert problem(await client.get(f"/v1/runs/run/results?{query}"), 422)["field"] == name


async def test_a_cursor_that_redis_would_refuse_is_refused(client: httpx.AsyncClient) -> None:
    await client.post("/v1/batches", json=batch())
    assert problem(await client.post("/v1/runs/run/ack", json={"cursors": ["0", "x"]}), 422)["field"] == "$.cursors[1]"


async def test_memory_above_the_quota_answers_429_with_a_time_to_come_back(settings: RedisSettings) -> None:
    await announce_source(settings)
    redis = connect(settings)
    async with started(settings) as (_, url), httpx.AsyncClient(base_url=url) as client:
        used = int((await fitness.info(redis, "memory"))["used_memory"])
        await redis.execute_command("CONFIG", "SET", "maxmemory", int(used * 1.2))
        try:
            async with asyncio.timeout(60):  # the service looks at the memory a few times a second
                while (answer := await client.post("/v1/batches", json=batch())).is_success:
                    pass
            problem(answer, 429)
            assert int(answer.headers["retry-after"]) >= 1
        finally:
            await redis.execute_command("CONFIG", "SET", "maxmemory", 0)
            await redis.aclose()


async def test_without_redis_every_call_answers_503_and_the_process_lives(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server.running(tmp_path / "r"))
        client = await stack.enter_async_context(api(redis, outage_ms=100))
        assert (await client.get("/readyz")).status_code == 200
        pid = int((await _info(redis, "server"))["process_id"])
        os.kill(pid, signal.SIGKILL)
        for path in ("/v1/jobs/a:b:1", "/v1/runs/a/results", "/v1/pools/policy/backends", "/readyz"):
            answer = await client.get(path)
            problem(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
        problem(await client.post("/v1/batches", json=batch()), 503)
        assert (await client.get("/healthz")).status_code == 200


async def _info(settings: RedisSettings, section: str) -> dict[str, str]:
    redis = connect(settings)
    try:
        return await fitness.info(redis, section)
    finally:
        await redis.aclose()


async def test_a_cursor_of_another_list_or_of_none_is_no_fault(client: httpx.AsyncClient) -> None:
    """Open groups are paged by a scan, closed ones by positions of a stream, before whose first nothing lies."""
    for name in ("open", "closed"):
        assert (await client.post("/v1/batches", json=batch("run", name))).status_code == 202
    assert (await client.post("/v1/batches/run:closed/cancel")).is_success
    for after in ("0-0", "00-00", "1-0", "9999999999999999999-9999999999999999999", "9999999999999999999", "00"):
        for query in ("groups?state=open", "groups?state=closed", "search?q=a", "batches?", "results?wait=0"):
            answer = await client.get(f"/v1/runs/run/{query}&after={after}")
            assert answer.status_code in {200, 422}, (query, after, answer.text)
    open_ones = await client.get("/v1/runs/run/groups?state=open&after=1-0")
    assert (open_ones.status_code, "no cursor of open groups" in open_ones.json()["detail"]) == (422, True)
    before_all = await client.get("/v1/runs/run/groups?state=closed&after=0-0")
    assert before_all.json() == {"groups": [], "next": None}
