"""The example that binds E2B keeps the contract; the API is a stand-in of ours, as E2B documents it.

Each machine of that is a reference server in this process, with real sandboxes. Nothing here has met E2B itself.
"""

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import pytest
from aiohttp import web

from examples.sandboxes.e2b_server import E2B, Binding
from sandbox.contract.links import LINK_CHECKS
from sandbox.contract.routes import ROUTE_CHECKS
from sandbox.contract.run import CONTRACT, checked
from sandbox.contract.trial import ContractTrial
from sandbox.remote.access import ServerAccess
from tests.remote.machine import TENANTS, Machine, answering, serving, token_file

pytestmark = pytest.mark.anyio
KEY = "e2b_0123456789"


class Cloud:
    """Of the documented API: create, list by metadata with pages, time-outs, delete."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stacks: dict[str, contextlib.AsyncExitStack] = {}
        self.machines: dict[str, tuple[Machine, dict[str, str]]] = {}
        self.prolonged: list[str] = []

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._keyed])
        app.add_routes([
            web.post("/sandboxes", self._create), web.get("/v2/sandboxes", self._list),
            web.post("/sandboxes/{id}/timeout", self._timeout), web.delete("/sandboxes/{id}", self._delete),
        ])  # fmt: skip
        return app

    async def aclose(self) -> None:
        for stack in self._stacks.values():
            await stack.aclose()

    @web.middleware
    async def _keyed(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("X-API-KEY") != KEY:
            return web.json_response({"code": 401, "message": "no key"}, status=401)
        return await handler(request)

    async def _create(self, request: web.Request) -> web.Response:
        body, name = await request.json(), secrets.token_hex(10)
        assert (body["templateID"], body["allow_internet_access"]) == ("template", False)
        stack = self._stacks[name] = contextlib.AsyncExitStack()
        machine = await stack.enter_async_context(serving(Machine(self._directory / name)))
        self.machines[name] = machine, body["metadata"]
        return web.json_response({"sandboxID": name, "templateID": "template", "domain": None}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        """One a page."""
        wanted, after = dict(parse_qsl(request.query["metadata"])), request.query.get("nextToken", "")
        found = sorted(
            name for name, (_, has) in self.machines.items() if wanted.items() <= has.items() and name > after
        )
        listed = [{"sandboxID": each, "metadata": self.machines[each][1], "state": "running"} for each in found[:1]]
        return web.json_response(listed, headers={"x-next-token": found[0]} if len(found) > 1 else {})

    async def _timeout(self, request: web.Request) -> web.Response:
        self.prolonged.append(request.match_info["id"])
        return web.Response(status=204 if request.match_info["id"] in self.machines else 404)

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if self.machines.pop(name, None) is None:
            return web.json_response({"code": 404, "message": "not found"}, status=404)
        await self._stacks.pop(name).aclose()
        return web.Response(status=204)


class Near(E2B):
    """Its machines are on loopback."""

    cloud: Cloud

    def address(self, machine: str) -> str:
        return self.cloud.machines[machine][0].address if machine in self.cloud.machines else "http://127.0.0.1:1"


@pytest.fixture
async def cloud(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Cloud]:
    made = Cloud(tmp_path / "cloud")
    (tmp_path / "cloud").mkdir()
    yield made
    await made.aclose()


@pytest.fixture
async def access(cloud: Cloud, tmp_path: Path) -> AsyncIterator[ServerAccess]:
    async with answering(cloud.app()) as url, aiohttp.ClientSession() as session:
        e2b = Near(session, url, KEY, "template")
        e2b.cloud = cloud
        async with answering(Binding(e2b, token_file(tmp_path), TENANTS).app()) as bound:
            yield ServerAccess(url=bound, token_file=token_file(tmp_path))


CHECKS = CONTRACT if "PRORL_SOAK" in os.environ else (*ROUTE_CHECKS, *LINK_CHECKS)  # the seal is the server's inside


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_binding_keeps_the_contract_and_leaves_no_machine(
    access: ServerAccess, cloud: Cloud, check: Callable[[ContractTrial], Awaitable[None]]
) -> None:
    assert (await checked(access, check)).problem == ""
    assert cloud.machines == {}


async def test_a_machine_whose_sandbox_was_refused_is_not_kept(access: ServerAccess, cloud: Cloud) -> None:
    trial = ContractTrial(access)
    answer = await trial.put(trial.name(), trial.wanted(image="no-such"))
    assert (answer.status, answer.refusal.error) == (422, "unsupported")
    assert cloud.machines == {}
    await trial.aclose()


def test_it_is_as_short_as_the_documentation_says() -> None:
    text = Path(__file__, "../../../examples/sandboxes/e2b_server.py").resolve().read_text()
    code = text.split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 200
