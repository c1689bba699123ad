"""The contract of remote sandboxes, kept by the reference server and broken by servers that keep none of it."""

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from sandbox.attack.catalogue import attacks
from sandbox.contract.routes import (
    a_list_has_the_services_own,
    a_sandbox_that_nobody_wants_ends,
    a_wrong_token_is_refused,
    the_same_create_twice_is_one_sandbox,
)
from sandbox.contract.run import CONTRACT, checked
from sandbox.contract.seal import (
    OF_HOST,
    SEAL_CHECKS,
    kernel_keys_are_out_of_reach,
    there_are_no_further_namespaces,
)
from sandbox.contract.trial import ContractTrial
from sandbox.fake import FakeCall, FakeProvider, FakeSandbox
from sandbox.isolators import bubblewrap_argv
from sandbox.isolators.apptainer import ApptainerProvider
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.lifetime.client import SocketSandbox
from sandbox.protocol import REMOTE, Mount, ProcessResult, SandboxLimits, SandboxSpec
from sandbox.remote.access import ServerAccess
from sandbox.remote.messages import Hello, RemoteList, RemoteState
from sandbox.selfcheck import CHECKS, HOST_FILE, selfcheck
from sandbox.server.libc import syscall
from sandbox.server.sealing.calls import MISSING, numbers
from tests.remote.machine import Machine, answering, serving, token_file
from tests.sandbox.conftest import TOOLS_DIR, require_apptainer

pytestmark = pytest.mark.anyio
SOAK = "PRORL_SOAK" in os.environ  # all checks for each kind: routes and links do not ask which one it is
Contract = Callable[[ContractTrial], Awaitable[None]]


class Unsealed(BubblewrapProvider):
    """A kind that runs every tool, and promises nothing of what the launcher does."""

    def __init__(self, node: str, state_dir: Path) -> None:
        super().__init__(node, state_dir, sealed=False)

    async def create(self, spec: SandboxSpec) -> SocketSandbox:
        place = str(Path(HOST_FILE).parent)
        generous = msgspec.structs.replace(
            spec, network=True, environment={"SECRET": "1"}, limits=SandboxLimits(),
            mounts=(Mount(source=place, target=place),),
        )  # fmt: skip
        return await super().create(generous)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_the_reference_server_keeps_it(machine: Machine, check: Contract) -> None:
    assert (await checked(machine.access(), check)).problem == ""


@pytest.mark.parametrize("check", CONTRACT if SOAK else SEAL_CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_it_with_apptainer_as_well(tmp_path: Path, check: Contract) -> None:
    require_apptainer()

    def kind(node: str, state_dir: Path) -> ApptainerProvider:
        return ApptainerProvider(node, state_dir, None, TOOLS_DIR)

    async with serving(Machine(tmp_path, kind=kind)) as machine:
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


def has_keys() -> bool:
    """Container runtimes keep them from whatever runs in them, so there is no sandbox here that has them."""
    try:
        syscall(numbers(MISSING, os.uname().machine)["keyctl"], 0, -3, 0)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("check", SEAL_CHECKS, ids=lambda check: check.__name__)
async def test_a_kind_without_the_seal_breaks_it(
    tmp_path: Path, check: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    if check is kernel_keys_are_out_of_reach and not has_keys():
        pytest.skip("the container runtime keeps kernel keys from all in it; the next test brings its own")
    options = bubblewrap_argv.bubblewrap_options

    def with_namespaces(layout: bubblewrap_argv.BubblewrapLayout) -> list[str]:
        return [each for each in options(layout) if each != "--disable-userns"]

    monkeypatch.setattr(bubblewrap_argv, "bubblewrap_options", with_namespaces)
    async with serving(Machine(tmp_path, kind=Unsealed)) as machine:
        problem = (await checked(machine.access(), check)).problem
    assert problem.startswith(("ContractBroken: got ", "_Failed: got ")), problem
    assert "the attack itself failed" not in problem


KEYS = [name for name in (each.name for each in attacks() if each.group == "keys") if name not in OF_HOST]


@pytest.mark.parametrize(
    ("reached", "broken"),
    [(set(KEYS), KEYS), (set(), []), ({"key-add"}, ["key-add"]), ({"key-note-run-to-eval"}, ["key-note-run-to-eval"])],
    ids=["all", "none", "add", "note"],
)
async def test_keys_that_are_in_reach_break_it_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: set[str], broken: list[str]
) -> None:
    """The boxes share one keyring, in which the second one looks for what the first one left."""
    programs, notes = {each.program: each.name for each in attacks() if each.group == "keys"}, set[str]()

    def said(call: FakeCall) -> str:
        if call.argument[0] == "grep":
            return "CapEff:\t0000\n"
        program, facts = call.argument[2], json.loads(call.argument[3])
        if program == "leave_note":
            notes.add(facts["note"])
            return json.dumps({"done": True, "said": "left"})
        done = programs[program] in reached and (program != "key_note" or facts["note"] in notes)
        return json.dumps({"done": done, "said": "tried"})

    provider = FakeProvider(said)

    async def made(_: ContractTrial) -> FakeSandbox:
        return await provider.create(SandboxSpec(owner="o"))

    monkeypatch.setattr(ContractTrial, "box", made)
    access = ServerAccess(url="http://127.0.0.1:1", token_file=token_file(tmp_path))
    problem = (await checked(access, kernel_keys_are_out_of_reach)).problem
    expected = "; ".join(f"{name}: tried" for name in broken)
    assert problem == (f"ContractBroken: got {expected!r}" if broken else "")
    assert len(provider.specs) == 2


async def test_attacks_are_not_let_loose_on_a_server_whose_sandboxes_have_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain process of root's could mount over the server's own directories."""
    box = await FakeProvider([ProcessResult(exit_code=0, stdout=b"CapInh:\t00\nCapEff:\t0002\n", stderr=b"")]).create(
        SandboxSpec(owner="o")
    )

    async def made(_: ContractTrial) -> FakeSandbox:
        return box

    monkeypatch.setattr(ContractTrial, "box", made)
    access = ServerAccess(url="http://127.0.0.1:1", token_file=token_file(tmp_path))
    assert "has capabilities" in (await checked(access, there_are_no_further_namespaces)).problem
    assert box.files == {}
