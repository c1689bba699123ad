"""A task's hosts from inside real sandboxes: reached through the proxy in RUN, by no other way, and recorded."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.messages import Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import Segment, Trajectory
from sandbox.protocol import SandboxProvider, SandboxSpec
from tests.sandbox.conftest import ISOLATED, provider, python_dir, require_apptainer, state_dir
from workers.egress.opening import PORT, VARIABLE, EgressRefused
from workers.handler import Eval, Init, Prepared, Ran, Run, Score
from workers.rehearsal.stages import rehearsing, task_of

__all__ = ["provider", "python_dir", "state_dir"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
VISIT = """
import http.client, json, os, socket, sys
proxy, found = os.environ["HTTPS_PROXY"], {}
def tried(name, act):
    try:
        found[name] = act()
    except OSError as error:
        found[name] = type(error).__name__ + str(error.errno or "")
def through(place):
    there = http.client.HTTPConnection(*proxy.removeprefix("http://").split(":"), timeout=30)
    name, _, number = place.partition(":")
    there.set_tunnel(name, int(number))
    there.request("GET", "/")
    return there.getresponse().read().decode()
def sent(kind, place):
    with socket.socket(socket.AF_INET, kind) as direct:
        direct.settimeout(5)
        direct.connect(place)
        return direct.send(b"x")
host, port = sys.argv[1:]
tried("listed", lambda: through(host + ":" + port))
tried("other port", lambda: through(host + ":1"))
tried("address", lambda: through("127.0.0.1:" + port))
tried("direct", lambda: sent(socket.SOCK_STREAM, ("127.0.0.1", int(port))))
tried("udp", lambda: sent(socket.SOCK_DGRAM, ("192.0.2.1", 53)))
tried("name", lambda: socket.getaddrinfo("example.org", 443))
print(json.dumps(found))
"""


@pytest.fixture(params=ISOLATED)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apptainer":
        require_apptainer()
    return str(request.param)


class Visits:
    """A family whose rollout runs one program."""

    data_sources: Sequence[str] = ("visits",)
    schema = Schema(required=("port",))
    needs_sandbox = True

    async def init(self, context: Init) -> Prepared:
        box = await context.sandbox()
        early = await box.run(["python3", "-c", VISIT, "localhost", str(context.job.payload["port"])], timeout_s=60)
        return Prepared(sandbox=box.handle, carry=json.loads(early.stdout) if early.stdout else early.stderr.decode())

    async def run(self, context: Run) -> Ran:
        assert context.sandbox is not None
        word = f"python3 -c '{VISIT}' localhost {context.job.payload['port']}"
        said = await context.sandbox.bash(word, timeout_s=60)
        row = Segment(prompt_ids=[1], response_ids=[], loss_mask=[], logprobs=[])
        made = Trajectory(segments=[row], turns=[], stop_reason="finish")
        return Ran(trajectory=made, export={"early": context.carry, "late": said.output})

    async def eval(self, context: Eval) -> Score:
        box = await context.sandbox()
        seen = await box.run(["sh", "-c", 'echo "${HTTPS_PROXY:-none}"; ls /opt'], timeout_s=60)
        return Score(reward=0.0, note=seen.stdout.decode())


@pytest.fixture
async def server() -> AsyncIterator[int]:
    """A web server of the host's loopback interface: its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


async def visited(provider: SandboxProvider, port: int, hosts: Sequence[str]) -> tuple[Ran, Score]:
    async with rehearsing(provider) as rehearsal:
        task: Task = msgspec.structs.replace(task_of(Visits(), {"port": port}), egress=hosts)
        return await rehearsal.rollout(Visits(), task, [])


async def test_a_listed_host_is_reached_in_run_and_nothing_else_ever(
    provider: SandboxProvider, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"localhost:{server},127.0.0.1/32")
    ran, score = await visited(provider, server, [f"localhost:{server}"])
    late: dict[str, Any] = json.loads(ran.export["late"])
    assert late.pop("listed") == "hello"
    assert ran.export["early"]["listed"] != "hello"
    assert set(late) == {"other port", "address", "direct", "udp", "name"}
    assert "OSError" in late["other port"]
    assert "OSError" in late["address"]
    assert late["direct"] == "ConnectionRefusedError111"
    assert late["udp"] == "OSError101"
    assert late["name"].startswith("gaierror")
    assert ran.trajectory is not None
    reached = {(line.host, bool(line.refused)): line for line in ran.trajectory.egress}
    assert set(reached) == {(f"localhost:{server}", False), ("localhost:1", True), (f"127.0.0.1:{server}", True)}
    opened = reached[f"localhost:{server}", False]
    assert (opened.connections, opened.received_bytes, opened.sent_bytes > 0) == (1, len(ANSWER), True)
    assert score.note is not None
    assert score.note.startswith("none\n")


async def test_hosts_that_the_operator_does_not_let_it_list_are_refused_by_name(
    provider: SandboxProvider, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listed in ("", "any", "pypi.org"):
        monkeypatch.setenv(VARIABLE, listed)
        with pytest.raises(EgressRefused, match=rf"the task lists localhost:{server} in egress, which {VARIABLE}"):
            await visited(provider, server, [f"localhost:{server}"])


async def test_a_task_without_hosts_has_no_proxy(provider: SandboxProvider) -> None:
    box = await provider.create(SandboxSpec(owner="job:1"))
    done = await box.run(["python3", "-c", f"import socket; socket.create_connection(('127.0.0.1', {PORT}))"])
    assert b"ConnectionRefusedError" in done.stderr
    await box.close()
