"""The command `prorl-api`: its address, its end, its event streams and its refusal to start."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from api.config import settings_from
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import spawn, started
from tests.api.service import announce_source, batch

pytestmark = pytest.mark.anyio


async def events(answer: httpx.Response, count: int) -> list[tuple[str, str]]:
    """(id, group id) of the next events of a stream."""
    found, cursor = [], ""
    async with asyncio.timeout(30):
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                cursor = line.removeprefix("id: ")
            elif line.startswith("data: "):
                found.append((cursor, json.loads(line.removeprefix("data: "))["group_id"]))
                if len(found) == count:
                    break
    return found


async def test_an_event_stream_has_each_group_once_and_resumes_after_the_last_event_id(
    settings: RedisSettings,
) -> None:
    await announce_source(settings)
    accept = {"Accept": "text/event-stream"}
    async with started(settings) as (_, url), httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/batches", json=batch(groups=3))
        async with client.stream("GET", "/v1/runs/run/results", headers=accept) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            await client.post("/v1/runs/run/cancel")
            seen = await events(answer, 3)
        assert sorted(name for _, name in seen) == ["batch-0", "batch-1", "batch-2"]
        resumed = accept | {"Last-Event-ID": seen[0][0]}
        async with client.stream("GET", "/v1/runs/run/results", headers=resumed) as answer:
            assert await events(answer, 2) == seen[1:]


async def test_a_long_poll_answers_when_a_group_closes(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with started(settings) as (_, url), httpx.AsyncClient(base_url=url, timeout=90) as client:
        await client.post("/v1/batches", json=batch())
        async with asyncio.TaskGroup() as tasks:
            poll = tasks.create_task(client.get("/v1/runs/run/results?wait=60"))
            await client.post("/v1/runs/run/cancel")
            async with asyncio.timeout(55):
                page = (await poll).json()
        assert [entry["group"]["verdict"] for entry in page["results"]] == ["cancelled"]


async def test_sigterm_answers_waiting_requests_and_ends_with_code_0(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with started(settings) as (process, url), httpx.AsyncClient(base_url=url, timeout=90) as client:
        await client.post("/v1/batches", json=batch())
        accept = {"Accept": "text/event-stream"}
        async with client.stream("GET", "/v1/runs/run/results", headers=accept) as stream, asyncio.TaskGroup() as tasks:
            poll = tasks.create_task(client.get("/v1/runs/run/results?wait=60"))
            await anext(stream.aiter_lines())  # both requests are under way
            await client.get("/healthz")
            process.terminate()
            async with asyncio.timeout(55):
                assert (await poll).json() == {"results": [], "cursor": "0"}
                assert await process.wait() == 0


async def test_a_unix_socket_is_its_owners_alone_and_goes_with_the_process(
    settings: RedisSettings, tmp_path: Path
) -> None:
    path = tmp_path / "api.sock"
    async with started(settings, "--uds", str(path)) as (_, address):
        assert address == f"unix://{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
            assert (await client.get("http://api/readyz")).status_code == 200
        second = await spawn("--redis", settings.url, "--uds", str(path))
        _, said = await second.communicate()
        assert (second.returncode, b"another process listens there" in said) == (2, True)
    assert not path.exists()


async def test_a_body_over_the_limit_is_refused_by_the_process(settings: RedisSettings) -> None:
    flags = ("--port", "0", "--max-body-bytes", "4096")
    async with started(settings, *flags) as (_, url), httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/v1/batches", content=b" " * 8192, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")


def test_an_open_address_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs --tokens FILE"):
        settings_from(["--redis", "redis://h", "--host", "0.0.0.0"], {})


def test_every_configuration_fault_is_reported_at_once(tmp_path: Path) -> None:
    flags = ["--redis", "http://h", "--namespace", "a b", "--port", "x", "--max-body-bytes", "1", "--uds", "/none/a/b"]
    with pytest.raises(ConfigurationError) as error:
        settings_from([*flags, "--tokens", str(tmp_path / "none")], {})
    said = str(error.value).splitlines()
    assert len(said) == 6
    for word in ("--redis", "--namespace", "--port", "--max-body-bytes", "--uds", "tokens file"):
        assert any(word in line for line in said)


def test_the_environment_stands_where_a_flag_is_missing() -> None:
    environ = {"PRORL_REDIS": "redis://h:1", "PRORL_NAMESPACE": "n", "PRORL_API_PORT": "9", "PRORL_REDIS_PASSWORD": "p"}
    made = settings_from(["--port", "10"], environ)
    assert (made.redis.url, made.redis.namespace, made.redis.password, made.port) == ("redis://h:1", "n", "p", 10)


async def test_the_command_says_what_is_wrong_and_ends_with_code_2() -> None:
    process = await spawn("--port", "70000")
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"--redis" in said
    assert b"70000" in said
