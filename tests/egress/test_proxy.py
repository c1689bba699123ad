"""The proxy behind a sandbox's door: what it opens, what it refuses, and what a hostile client can make it hold."""

import asyncio
import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from prorl_mq import resolver
from prorl_mq.rules.egress import operator_list, target
from prorl_mq.schema.trajectory import HostReached, Trajectory
from sandbox.errors import SandboxError
from sandbox.fake import FakeProvider, FakeSandbox
from sandbox.lifetime import label
from sandbox.protocol import SandboxSpec
from workers.egress import head, proxy
from workers.egress.ledger import MOST_REFUSALS, OTHERS, Ledger
from workers.egress.opening import VARIABLE, way_out
from workers.egress.proxy import CONNECTIONS, LOOK_UPS, SOCKET, EgressProxy
from workers.handler import SandboxLost, lost_with_egress

pytestmark = pytest.mark.anyio
LOOPBACK = "localhost,127.0.0.0/8,::1/128"
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # a short path: it becomes a socket's
        yield Path(name)


@contextlib.asynccontextmanager
async def echo(name: bytes = b"", host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """A server that says its name, and then what it hears; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name)
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, host, port) as server:
        yield server.sockets[0].getsockname()[1]


def made(hosts: Sequence[str], listed: str = LOOPBACK, **more: proxy.LookUp) -> EgressProxy:
    return EgressProxy("job:1", [target(each) for each in hosts], operator_list(listed), **more)


async def sent(door: Path, request: bytes) -> Ends:
    reader, writer = await asyncio.open_unix_connection(str(door / SOCKET))
    writer.write(request)
    return reader, writer


async def status(door: Path, request: bytes) -> str:
    reader, writer = await sent(door, request)
    async with asyncio.timeout(30):
        line = await reader.readline()
    writer.close()
    return line.decode().removeprefix("HTTP/1.1 ").strip()


def connect(place: str) -> bytes:
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()


async def test_a_listed_host_is_reached_and_counted(door: Path) -> None:
    """What comes with the head is passed on; the end of one direction leaves the other open. The socket of a worker
    that died is replaced.
    """
    label.listen(door, SOCKET).close()
    async with echo(b"hello ") as port:
        found = made([f"localhost:{port}"])
        async with found.listening(door):
            reader, writer = await sent(door, connect(f"LOCALHOST:{port}") + b"early ")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
            writer.write(b"late")
            writer.write_eof()
            assert await reader.read() == b"hello early late"
            assert await status(door, connect("localhost:1")) == "403 Forbidden"
    assert found.ledger.lines() == [
        HostReached(host="localhost:1", refused="the task does not list this host with this port", connections=1),
        HostReached(host=f"localhost:{port}", connections=1, sent_bytes=10, received_bytes=16),
    ]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (connect("other.org:443"), "403"),
        (connect("pypi.org:22"), "403"),
        (connect("pypi.org"), "400"),
        (connect("127.0.0.1:443"), "403"),
        (connect("2130706433:443"), "403"),
        (connect("0x7f000001:443"), "403"),
        (connect("0177.0.0.1:443"), "403"),
        (connect("[::1]:443"), "403"),
        (connect("pypi.org.:443"), "403"),
        (connect("pypi.org\0.evil.org:443"), "400"),
        (connect("\33]0;title\7pypi.org:443"), "400"),
        (connect("p\u00fdpi.org:443"), "400"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n", "405"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", "400"),
        (b"CONNECT pypi.org:443\r\n\r\n", "400"),
        (b"CONNECT pypi.org:443 HTTP/1.1\r\nX: " + b"x" * (20 << 10) + b"\r\n\r\n", "431"),
        (b"CONNECT " + b"x" * (1 << 20), "431"),
    ],
)
async def test_nothing_else_is_connected_to_nor_looked_up(door: Path, request_: bytes, expected: str) -> None:
    async def look_up(_: str) -> Sequence[str]:
        raise AssertionError

    found = made(["pypi.org"], look_up=look_up)
    async with found.listening(door):
        assert (await status(door, request_)).startswith(expected)
    [line] = found.ledger.lines()
    assert line.refused
    assert line.host.isascii()
    assert f"{line.host} {line.refused}".isprintable()


@pytest.mark.parametrize(("listed", "opens"), [("localhost", False), ("any,10.0.0.0/8", False), (LOOPBACK, True)])
async def test_a_name_of_an_internal_address_opens_nothing_unless_its_network_is_listed(
    door: Path, listed: str, *, opens: bool
) -> None:
    async with echo() as port, made([f"localhost:{port}"], listed).listening(door):
        answered = await status(door, connect(f"localhost:{port}"))
    assert answered == ("200 Connection established" if opens else "403 Forbidden")


async def test_what_was_judged_is_connected_to_whatever_a_name_leads_to_a_moment_later(door: Path) -> None:
    """A name that answers otherwise each time (DNS rebinding) is looked up once for a connection."""
    answers = [["127.0.0.5", "127.0.0.1"], ["127.0.0.5"], ["10.0.0.1", "127.0.0.2"]]
    asked: list[str] = []

    async def look_up(host: str) -> Sequence[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    async with echo(b"one", "127.0.0.1") as port, echo(b"two", "127.0.0.2", port), echo(b"inner", "127.0.0.5", port):
        name = f"rebinding.test:{port}"
        found = made([name], f"rebinding.test:{port},127.0.0.1/32,127.0.0.2/32", look_up=look_up)
        said = []
        async with found.listening(door):
            for expected in ("200", "403", "200"):
                reader, writer = await sent(door, connect(name))
                head_, _, body = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n\r\n")
                assert head_.split()[1].decode() == expected
                writer.write_eof()
                said.append(body + await reader.read())
    assert len(asked) == 3
    assert [said[0], said[2]] == [b"one", b"two"]


async def test_a_host_without_an_address_or_a_server_is_a_bad_gateway(door: Path) -> None:
    async def look_up(host: str) -> Sequence[str]:
        if host == "gone.test":
            raise OSError
        return ["127.0.0.1"]

    async with echo() as port:
        pass  # nothing listens there now
    async with made(["gone.test", f"shut.test:{port}"], look_up=look_up).listening(door):
        assert await status(door, connect("gone.test:443")) == "502 Bad Gateway"
        assert await status(door, connect(f"shut.test:{port}")) == "502 Bad Gateway"


async def test_slow_names_hold_up_no_other_rollout(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a backend of the worker: a look-up that nobody waits for has its thread for as long as the resolver tries."""
    released, held = threading.Event(), list[str]()

    def looked_up(host: str) -> Sequence[str]:
        if host == "slow.test":
            held.append(host)
            assert released.wait(60)
        return ["127.0.0.1"]

    monkeypatch.setattr(resolver, "_looked_up", looked_up)
    async with asyncio.timeout(60), made(["slow.test"], "slow.test").listening(door):
        ends = [await sent(door, connect("slow.test:443")) for _ in range(CONNECTIONS - 1)]
        assert await status(door, connect("other.test:443")) == "403 Forbidden"  # so these have been read
        while len(held) < LOOK_UPS:
            await asyncio.sleep(0)
        try:
            assert await resolver.look_up("backend.test") == ["127.0.0.1"]
            assert len(held) == LOOK_UPS
        finally:
            released.set()
        for reader, _ in ends:
            assert (await reader.readline()).split()[1] in {b"403", b"502"}


async def test_a_slow_head_is_not_waited_for(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "WITHIN_S", 0.05)
    async with made(["pypi.org"]).listening(door):
        assert await status(door, b"CONNECT pypi") == "408 Request Timeout"


async def test_a_connection_without_traffic_ends(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "IDLE_S", 0.05)
    async with echo() as port, made([f"localhost:{port}"]).listening(door):
        reader, _ = await sent(door, connect(f"localhost:{port}"))
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")


async def test_connections_at_once_are_bounded(door: Path) -> None:
    """One more is dropped; when one has ended there is room again."""
    async with echo() as port:
        found, place = made([f"localhost:{port}"]), f"localhost:{port}"
        async with found.listening(door), asyncio.timeout(60):
            held = [await sent(door, connect(place)) for _ in range(CONNECTIONS)]
            for reader, _ in held:
                await reader.readuntil(b"\r\n\r\n")
            reader, _ = await sent(door, connect(place))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            held.pop()[1].close()
            while await status_or_nothing(door, place) != "200":
                await asyncio.sleep(0)
    assert {line.connections for line in found.ledger.lines() if not line.refused} == {CONNECTIONS + 1}


async def status_or_nothing(door: Path, place: str) -> str:
    try:
        return (await status(door, connect(place)))[:3]
    except ConnectionError:
        return ""


async def test_connections_end_with_the_rollout(door: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with echo() as port, made([f"localhost:{port}"]).listening(door):
        reader, _ = await sent(door, connect(f"localhost:{port}"))
        await reader.readuntil(b"\r\n\r\n")
        ended = asyncio.ensure_future(reader.read())
    with contextlib.suppress(ConnectionError):
        assert await ended == b""
    with pytest.raises(ConnectionError):
        await asyncio.open_unix_connection(str(door / SOCKET))
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


@pytest.mark.parametrize("steps", range(6))
async def test_one_that_comes_as_the_rollout_ends_is_not_served(door: Path, steps: int) -> None:
    """Wherever the loop is with it: accepted and not begun, it belongs to nothing that could be cancelled."""
    async with echo() as port:
        before = asyncio.all_tasks()
        with socket.socket(socket.AF_UNIX) as client:
            async with made([f"localhost:{port}"]).listening(door):
                client.connect(str(door / SOCKET))
                client.sendall(connect(f"localhost:{port}"))
                client.setblocking(False)
                for _ in range(steps):
                    await asyncio.sleep(0)
            async with asyncio.timeout(30):  # one that is served does not end
                while left := asyncio.all_tasks() - before:
                    await asyncio.wait(left)
            with contextlib.suppress(ConnectionError, BlockingIOError):
                assert client.recv(64) == b""


async def test_a_record_is_bounded_and_counts_all() -> None:
    """However much is refused, what was opened has lines of its own."""
    ledger = Ledger()
    for number in range(3 * MOST_REFUSALS):
        ledger.refused(f"host-{number}.test:443", "not listed")
    for _ in range(2):
        ledger.opened("listed.test:443")[1] += 5
    lines = ledger.lines()
    assert len(lines) == MOST_REFUSALS + 2
    assert sum(line.connections for line in lines if line.refused) == 3 * MOST_REFUSALS
    assert HostReached(host="listed.test:443", connections=2, sent_bytes=10) in lines
    assert HostReached(host=OTHERS, refused="refused", connections=2 * MOST_REFUSALS) in lines


async def test_a_sandbox_without_a_door_has_no_way_out(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An INIT worker of an older release makes one; nothing is opened in the worker's own directory."""
    monkeypatch.setenv(VARIABLE, "any")
    monkeypatch.chdir(door)
    box = await FakeProvider().create(SandboxSpec(owner="job:1"))
    with pytest.raises(SandboxError, match="its sandbox has no door"):
        async with way_out(box, "job:1", ["pypi.org"]):
            pass
    assert not os.listdir(door)  # noqa: PTH208


async def test_a_rollout_whose_sandbox_is_lost_has_its_record(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time that is its end, and an agent can bring it about."""
    monkeypatch.setenv(VARIABLE, "any")
    blind = await FakeProvider().create(SandboxSpec(owner="job:1"))
    box = FakeSandbox(FakeProvider(), msgspec.structs.replace(blind.handle, door=str(door)))
    sampled = Trajectory(segments=[], turns=[], stop_reason="sandbox")

    async def acted() -> None:
        async with way_out(box, "job:1", ["pypi.org"]) as ledger:
            with lost_with_egress(ledger.lines):
                assert await status(door, connect("pypi.org:22")) == "403 Forbidden"
                raise SandboxLost("gone", sampled)

    with pytest.raises(SandboxLost) as lost:
        await acted()
    assert lost.value.trajectory is not None
    assert [line.host for line in lost.value.trajectory.egress] == ["pypi.org:22"]


async def test_localhost_is_looked_up_by_the_hosts_resolver(door: Path) -> None:
    """Which the tests above rest on."""
    assert "127.0.0.1" in await resolver.look_up("localhost")
