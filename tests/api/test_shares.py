"""What one tenant may have in work at an API process: the others are answered, and it is told to have fewer."""

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from api.config import ApiSettings
from api.places import REQUESTS, Holding, Places
from api.service import Service
from prorl_mq.schema.ids import TenantId
from prorl_mq.schema.settings import TenantSettings
from prorl_mq.store import run_settings
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store
from tests.api.service import Worker, announce_source, api, batch
from tests.api.test_waiting import service_of
from tests.api.threaded import threaded

pytestmark = pytest.mark.anyio
ANN, BOB = TenantId("ann"), TenantId("bob")
TOKENS: dict[str, bytes] = {name: hashlib.sha256(name.encode()).digest() for name in (ANN, BOB)}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


class SlowBody(httpx.AsyncByteStream):
    """A body of which one part comes, and the rest when a test says so."""

    def __init__(self, part: bytes = b"{") -> None:
        self.rest = asyncio.Event()
        self._part = part

    async def __aiter__(self) -> Any:
        yield self._part
        await self.rest.wait()
        yield b"}"


def sending(client: httpx.AsyncClient, body: SlowBody, tenant: str) -> Any:
    headers = {**bearer(tenant), "Content-Type": "application/json"}
    return client.post("/v1/batches", content=body, headers=headers)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_tenant_that_holds_its_part_is_refused_while_the_other_is_answered(settings: RedisSettings) -> None:
    async with api(settings, tokens=TOKENS) as client, asyncio.TaskGroup() as tasks:
        service, body = service_of(client), SlowBody()
        service.requests = Places(4, 2, "requests are in work at", again_s=1)
        held = [tasks.create_task(sending(client, body, ANN)) for _ in range(3)]
        await until(lambda: service.requests.free == 1)
        for ask in (client.get("/v1/access", headers=bearer(ANN)), sending(client, SlowBody(), ANN)):
            refused = await ask
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "3 requests are in work at this process, 3 of them yours" in refused.json()["detail"]
        assert (await client.get("/v1/access", headers=bearer(BOB))).status_code == 200
        body.rest.set()
        assert [(await each).status_code for each in held] == [422] * 3
        assert (await client.get("/v1/access", headers=bearer(ANN))).status_code == 200
        assert service.requests.free == 4


async def asked(url: str, tenant: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A connection that stays open behind the answer to one request, and the head of that answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/access HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n" % tenant.encode())
    return reader, writer, await reader.readuntil(b"\r\n\r\n")


async def until_answered(url: str, tenant: str) -> None:
    async with asyncio.timeout(20):
        while True:
            _, writer, head = await asked(url, tenant)
            writer.close()
            if b" 200 " in head:
                return
            await asyncio.sleep(0.02)  # the server has yet to notice the end of another connection


async def too_many(url: str) -> None:
    held = [await asked(url, ANN) for _ in range(6)]
    assert [b" 200 " in head for _, _, head in held] == [True] * 6
    reader, over, head = await asked(url, ANN)
    assert b" 429 " in head
    assert b"connection: close" in head.lower()
    assert b"6 connections are open at this process, 6 of them yours" in await reader.read()
    await until_answered(url, BOB)
    for _, writer, _ in held[:2]:
        writer.close()
    await until_answered(url, ANN)
    for _, writer, _ in held[2:]:
        writer.close()
    over.close()


async def as_many_as_wanted(url: str) -> None:
    held = [await asked(url, ANN) for _ in range(8)]
    assert [b" 200 " in head for _, _, head in held] == [True] * 8
    for _, writer, _ in held:
        writer.close()


@pytest.mark.parametrize(("most", "body"), [(8, too_many), (80, as_many_as_wanted)], ids=["bounded", "control"])
def test_a_tenant_with_too_many_connections_is_refused_while_the_other_is_answered(
    empty_redis: RedisSettings, monkeypatch: pytest.MonkeyPatch, most: int, body: Any
) -> None:
    """They are idle, so no other place is held; each that ends is one that may come."""
    monkeypatch.setattr("api.service.most_open", lambda: most)
    with threaded(empty_redis, idle_s=600, tokens=TOKENS) as url:
        asyncio.run(body(url))


async def test_bytes_of_bodies_are_shared_as_requests_are(settings: RedisSettings) -> None:
    async with api(settings, tokens=TOKENS) as client, asyncio.TaskGroup() as tasks:
        service, body = service_of(client), SlowBody(b"x" * 60)
        service.bodies = Places(100, 2, "bytes of bodies lie at", again_s=1)
        held = tasks.create_task(sending(client, body, ANN))
        await until(lambda: service.bodies.free == 40)
        refused = await sending(client, SlowBody(b"x" * 30), ANN)
        assert (refused.status_code, refused.headers["connection"]) == (429, "close")
        assert "60 bytes of bodies lie at this process, 60 of them yours" in refused.json()["detail"]
        theirs = SlowBody(b"x" * 30)
        theirs.rest.set()
        assert (await sending(client, theirs, BOB)).status_code == 422
        body.rest.set()
        assert (await held).status_code == 422
        assert service.bodies.free == 100


async def test_a_request_that_waits_leaves_its_place_to_those_in_work(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with api(settings, tokens=TOKENS) as client, asyncio.TaskGroup() as tasks:
        service = service_of(client)
        service.requests = Places(1, 1, "requests are in work at", again_s=1)
        assert (await client.post("/v1/batches", json=batch(), headers=bearer(ANN))).status_code == 202
        path = "/v1/runs/run/results?wait=50"
        polls = []
        for number in range(1, 4):
            polls.append(tasks.create_task(client.get(path, headers=bearer(ANN))))
            await until(lambda number=number: service.polls.free == service.polls.count - number)
        assert service.requests.free == 1
        assert (await client.post("/v1/runs/run/cancel", headers=bearer(ANN))).status_code == 202
        async with asyncio.timeout(40):
            assert [(await poll).status_code for poll in polls] == [200] * 3
        assert (service.polls.free, service.requests.free) == (service.polls.count, 1)


def test_the_claims_of_a_request_end_with_it() -> None:
    requests, polls = Places(2, 1, "requests are in work at"), Places(1, 1, "requests wait at")
    with Holding(ANN) as holding:
        holding.take(requests)
        holding.exchange(requests, polls)
        assert (requests.free, polls.free) == (2, 0)
    assert (requests.free, polls.free) == (2, 1)


def test_a_service_counts_for_as_many_tenants_as_have_tokens() -> None:
    places = Service(ApiSettings(redis=RedisSettings(url="unix:///nowhere"), tokens=TOKENS)).requests
    assert (places.count, places.tenants) == (REQUESTS, 2)


@pytest.mark.parametrize("most", [5, None], ids=["quota", "control"])
async def test_a_quota_holds_though_two_processes_take_work_and_one_ends(
    settings: RedisSettings, most: int | None
) -> None:
    """Without workers nothing ends: what is in flight was admitted by either of them, and is all that ever was."""
    await announce_source(settings)
    redis = connect(settings)
    store = Store(redis, Keys(settings.namespace), name="test")
    await run_settings.set_tenant(store, ANN, TenantSettings(max_jobs=most))

    async def in_flight() -> int:
        return sum(map(int, (await ask(redis, "HGETALL", store.keys.in_flight))[1::2]))

    async def reached(jobs: int) -> None:
        async with asyncio.timeout(30):
            while await in_flight() < jobs:
                await asyncio.sleep(0.01)

    async with Worker(settings), api(settings, tokens=TOKENS, name="b") as second:
        async with api(settings, tokens=TOKENS, name="a") as first:
            sent = [
                client.post("/v1/batches", json=batch(run=f"r{number % 4}", name=f"b{number}"), headers=bearer(ANN))
                for number in range(20)
                for client in (first, second)
            ]
            assert {answer.status_code for answer in await asyncio.gather(*sent)} <= {200, 202}
            await reached(most or 20)
        await second.post("/v1/batches", json=batch(run="late", name="late", groups=3), headers=bearer(ANN))
        if most is None:
            await reached(23)
        else:  # one ends, and the process that is left admits one in its place
            assert await in_flight() == most
            running = [each.decode() for each in await ask(redis, "ZRANGE", store.keys.deadlines, 0, -1)]
            cancelled = running[0].partition(":")[2]
            await second.post(f"/v1/jobs/{cancelled}/cancel", headers=bearer(ANN))
            async with asyncio.timeout(30):
                while set(await ask(redis, "ZRANGE", store.keys.deadlines, 0, -1)) <= {x.encode() for x in running}:
                    assert await in_flight() <= most
                    await asyncio.sleep(0.01)
            assert await in_flight() == most
    await redis.aclose()
