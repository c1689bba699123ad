"""The contract of remote sandboxes, kept by the reference server and broken by servers that keep none of it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from sandbox.contract.routes import (
    a_list_has_the_services_own,
    a_sandbox_that_nobody_wants_ends,
    a_wrong_token_is_refused,
    the_same_create_twice_is_one_sandbox,
)
from sandbox.contract.run import CONTRACT, checked
from sandbox.contract.trial import ContractTrial
from sandbox.protocol import REMOTE
from sandbox.remote.access import ServerAccess
from sandbox.remote.messages import Hello, RemoteList, RemoteState
from sandbox.selfcheck import CHECKS, selfcheck
from tests.remote.machine import Machine, answering, token_file

pytestmark = pytest.mark.anyio
Contract = Callable[[ContractTrial], Awaitable[None]]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_the_reference_server_keeps_it(machine: Machine, check: Contract) -> None:
    assert (await checked(machine.access(), check)).problem == ""


async def test_every_tool_works_over_a_link(machine: Machine) -> None:
    trial = ContractTrial(machine.access())
    try:
        done = await selfcheck(trial.provider)
    finally:
        await trial.aclose()
    assert trial.provider.kind == REMOTE
    assert len(done) == len(CHECKS) + 3
    assert [each for each in done if each.problem and "ipython" not in each.name] == []


def careless() -> web.Application:
    """A server that lets everybody in, makes a new sandbox whenever it is asked, and forgets labels and ends."""

    def said(body: msgspec.Struct, status: int = 200) -> web.Response:
        return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")

    async def answer(request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if request.path == "/v1":
            return said(Hello(protocol=1, name="careless", kind="none"))
        if name == "sandboxes":
            return said(RemoteList(sandboxes=[]))
        if request.method == "DELETE":
            return web.Response(status=204)
        return said(RemoteState(name=name, service="", owner="", expires_s=1), 201 if request.method == "PUT" else 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@pytest.mark.parametrize(
    "check", [a_wrong_token_is_refused, the_same_create_twice_is_one_sandbox, a_list_has_the_services_own,
              a_sandbox_that_nobody_wants_ends],
    ids=lambda check: check.__name__,
)  # fmt: skip
async def test_a_careless_server_breaks_it(tmp_path: Path, check: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.contract.routes.LATE_S", 0.0)
    async with answering(careless()) as url:
        access = ServerAccess(url=url, token_file=token_file(tmp_path))
        assert (await checked(access, check)).problem != ""
