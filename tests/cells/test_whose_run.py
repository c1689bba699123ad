"""Nobody but an operator moves, sees or has back the run of another tenant: by a cell, the router or a command."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from api.cells.app import create_app
from prorl_mq.cli import main
from prorl_mq.store.server.connection import RedisSettings
from tests.cells.near import NearCell, NearTown, bearer, near, waiting, whole_in
from tests.verbs.moved import published

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
DEPARTURE = {"id": "d"}
REFUSING = {"cell": "a", "mover": "m", "id": "d"}
PAGE = {"mover": "m", "id": "d", "page": {"writes": [], "after": "more", "namespace": "x"}, "first": True}
BODIES: Mapping[tuple[str, str], Any] = {
    ("get", "arrival"): None,
    ("put", "arrival"): {"cell": "a", "mover": "m"},
    ("post", "arrival/page"): PAGE,
    ("post", "arrival/refuse"): REFUSING,
    ("post", "arrival/over"): DEPARTURE,
    ("put", "departure"): {"cell": "b"},
    ("post", "departure/page"): DEPARTURE,
    ("post", "departure/vacate"): DEPARTURE,
    ("post", "departure/back"): DEPARTURE,
    ("put", "cell"): {"cell": "b"},
}
OTHERS = {"guest": (), "silent": None, "lab": ("10.0.0.0/8",), "everywhere": ("0.0.0.0/0", "::/0", "*.any")}
REFUSED = "only an operator moves runs"


@pytest.fixture
async def here(settings: RedisSettings) -> AsyncIterator[NearTown]:
    async with near(settings, tenants={"acme": ("any",), "operators": ("any",), **OTHERS}) as made:
        await published(made.cells["a"].queue)
        yield made


async def all_of(cell: NearCell) -> dict[bytes, bytes | None]:
    """Every key of a cell as Redis would dump it."""
    keys = sorted(await cell.queue.command("KEYS", f"{cell.queue.keys.prefix}*"))
    return {key: await cell.queue.command("DUMP", key) for key in keys}


async def steps(cell: NearCell) -> dict[tuple[str, str], str]:
    """Every operation that takes the name of another tenant, with its path behind that of the run."""
    told = (await cell.client.get("/openapi.json")).json()
    return {
        (method, path.removeprefix("/v1/runs/{run}/")): path
        for path, methods in told["paths"].items()
        for method, about in methods.items()
        if any(each["name"] == "tenant" for each in about.get("parameters", ()))
    }


async def step(cell: NearCell, which: tuple[str, str], headers: Mapping[str, str], **query: str) -> httpx.Response:
    method, path = which
    body, kind = BODIES[which], "application/json"
    content = msgspec.json.encode(body) if body is not None else b""
    if path == "arrival/page":
        content, kind = msgspec.msgpack.encode(body), "application/msgpack"
    return await cell.client.request(
        method, f"/v1/runs/r/{path}", params=query, content=content, headers={**headers, "content-type": kind}
    )


async def test_no_step_of_a_move_is_anothers(here: NearTown) -> None:
    """Nor does it change or tell anything. Every operation that takes a tenant's name is tried."""
    a = here.cells["a"]
    assert {*await steps(a)} == {*BODIES}
    before = await all_of(a)
    for which in BODIES:
        for tenant in OTHERS:
            for named in ("acme", tenant, "operators", "nobody"):
                answer = await step(a, which, bearer(tenant), tenant=named)
                assert (answer.status_code, REFUSED in answer.text) == (403, True), (which, tenant, answer.text)
            twice = await step(a, which, bearer(tenant), tenant=["acme", tenant])  # type: ignore[arg-type]
            assert twice.status_code in {403, 422}, (which, twice.text)
        for headers in ({}, bearer("no-token")):
            assert (await step(a, which, headers, tenant="acme")).status_code == 401
    assert await all_of(a) == before
    for which in BODIES:
        answer = await step(a, which, bearer("operators"), tenant="acme")
        assert answer.status_code != 403, f"the control: an operator may, {which}: {answer.text}"


@pytest.mark.parametrize("name", ["acme:r", "acme%3Ar", "*", "[r]"])
async def test_no_name_of_a_run_is_that_of_another_tenants(here: NearTown, name: str) -> None:
    a = here.cells["a"]
    before = await all_of(a)
    for method, path in (("GET", "arrival"), ("PUT", "departure"), ("PUT", "cell")):
        body = BODIES[method.lower(), path]
        answer = await a.client.request(method, f"/v1/runs/{name}/{path}", json=body, headers=bearer("guest"))
        assert answer.status_code in {403, 404, 422}, answer.text
    async with routed(here) as client:
        for method in ("GET", "POST", "DELETE"):
            body = {"cell": "b", "within_s": 0} if method == "POST" else None
            answer = await client.request(method, f"/v1/runs/{name}/move", json=body, headers=bearer("guest"))
            assert answer.status_code == 404, answer.text
    assert await all_of(a) == before


@contextlib.asynccontextmanager
async def routed(here: NearTown) -> AsyncIterator[httpx.AsyncClient]:
    """The router of these cells, on a port of its own."""
    server = uvicorn.Server(
        uvicorn.Config(create_app([*here.cells.values()], host="127.0.0.1"), port=0, log_level="error")
    )
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(30):
            while not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


async def test_the_router_and_the_command_move_no_run_of_another_tenant(
    here: NearTown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = here.cells["a"]
    before = await all_of(a)
    async with routed(here) as client:
        for tenant in OTHERS:
            for method, query in (("GET", {}), ("POST", {}), ("DELETE", {}), ("DELETE", {"lost": "true"})):
                ask = partial(client.request, method, "/v1/runs/r/move", headers=bearer(tenant))
                ask = partial(ask, json={"cell": "b", "within_s": 0}) if method == "POST" else ask
                named = await ask(params={**query, "tenant": "acme"})
                assert (named.status_code, REFUSED in named.text) == (403, True), named.text
                own = await ask(params=query)
                assert own.status_code == 404, own.text
        monkeypatch.setenv("PRORL_URL", str(client.base_url))
        monkeypatch.setenv("PRORL_TOKEN", bearer("guest")["authorization"].removeprefix("Bearer "))
        for words in (["to", "acme:r", "b", "0"], ["show", "acme:r"], ["back", "acme:r"], ["lost", "acme:r"]):
            assert await asyncio.to_thread(main, ["move", *words]) == 1
            assert REFUSED in capsys.readouterr().err
            assert await asyncio.to_thread(main, ["move", words[0], "r", *words[2:]]) == 1
            assert "your tenant has no run 'r'" in capsys.readouterr().err
        assert await all_of(a) == before
        monkeypatch.setenv("PRORL_TOKEN", bearer("operators")["authorization"].removeprefix("Bearer "))
        assert await asyncio.to_thread(main, ["move", "to", "acme:r", "b", "0"]) == 0, "the control: an operator may"
    assert await waiting(here.cells["b"].queue) == {"waits"}
    await whole_in(here, "b", {"waits"})


async def test_an_operators_reading_token_moves_nothing(here: NearTown) -> None:
    a = here.cells["a"]
    before = await all_of(a)
    headers = {"authorization": "Bearer reads-for-operators"}
    for which in BODIES:
        answer = await step(a, which, headers, tenant="acme")
        assert answer.status_code == (200 if which[0] == "get" else 403), (which, answer.text)
    async with routed(here) as client:
        moved = await client.post("/v1/runs/r/move?tenant=acme", json={"cell": "b", "within_s": 0}, headers=headers)
        assert moved.status_code == 403
    assert await all_of(a) == before
