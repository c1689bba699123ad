"""What the way over HTTP does beside the calls: large bodies, event loops, and services that are not there."""

import asyncio
import contextlib
import socket
import warnings

import msgspec
import pytest

from prorl_mq.client import AsyncClient, ServiceError
from prorl_mq.client.http import AT_ONCE_BYTES, HttpDoor
from prorl_mq.client.posts import is_plain
from prorl_mq.client.transport import Unreachable
from prorl_mq.process.ports import free_port
from prorl_mq.schema.messages import BatchRequest
from tests.api.service import batch

TEXT = "x" * (1 << 16)


@pytest.mark.anyio
async def test_a_batch_larger_than_what_is_sent_at_once_arrives_whole(ingress: str) -> None:
    groups = batch(groups=2 * AT_ONCE_BYTES // len(TEXT))
    for group in groups["groups"]:
        group["task"]["payload"]["question"] = TEXT
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        async with AsyncClient(ingress) as client:
            assert (await client.submit(groups)).jobs == len(groups["groups"])


@pytest.mark.anyio
async def test_one_door_serves_one_event_loop_after_the_other(ingress: str) -> None:
    door = HttpDoor(ingress)

    def ask() -> int:
        async def once() -> int:
            try:
                return len(await door.runs())
            finally:
                await door.aclose()

        return asyncio.run(once())

    assert [await asyncio.to_thread(ask) for _ in range(2)] == [0, 0]


@pytest.mark.anyio
async def test_the_token_of_this_machine_passes_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters set `http_proxy` for everybody, often without `no_proxy`."""
    heard = list[bytes]()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    monkeypatch.setenv("PRORL_TOKEN", "known-here-alone")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for host in ("127.0.0.1", "localhost", "elsewhere.invalid"):
            door = HttpDoor(f"http://{host}:{free_port()}")
            for call in (door.runs(), door.ack("run", [])):
                with pytest.raises(Unreachable):
                    await call
            await door.aclose()
    assert {head.split()[0] for head in heard} == {b"GET", b"POST"}
    assert {head.split(b":")[1] for head in heard} == {b"//elsewhere.invalid"}, "only that one is for the proxy"
    assert not any(b"known-here-alone" in head for head in heard)


@pytest.mark.anyio
async def test_an_answer_of_something_else_is_told_as_what_it_is() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = answers.pop(0)
        writer.write(answer)
        await writer.drain()
        writer.close()

    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<h1>"
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 3\r\n\r\n\xff\xfe\xfd"
    answers = [moved, page, busy, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"]  # the last two end too early
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        door = HttpDoor(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ServiceError, match=r"302 Found") as refused:
            await door.runs()
        assert refused.value.status == 302
        with pytest.raises(ServiceError, match="answered something else"):
            await door.runs()
        with pytest.raises(Unreachable) as again:
            await door.runs()
        assert (again.value.status, again.value.retry_after_s) == (503, 7.0)
        with pytest.raises(Unreachable, match="does not answer"):
            await door.ack("run", [])
        with pytest.raises(Unreachable, match="does not answer"):
            await door.ack("run", [])
        await door.aclose()


@pytest.mark.anyio
async def test_who_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        door = HttpDoor(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(Unreachable, match=r"does not answer .*is it running"):
            await door.submit(batch())  # type: ignore[arg-type]
        await door.aclose()


def answered(status: int, value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@pytest.mark.anyio
@pytest.mark.parametrize("reads", [False, True], ids=["between two calls", "within the second"])
async def test_a_kept_connection_that_ends_costs_a_call_nothing(reads: bool) -> None:
    """The service closes one after five seconds without a request, and may do so just as the next one is sent."""
    connections, calls = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, calls
        connections += 1
        for number in range(2 if reads else 1):
            with contextlib.suppress(asyncio.IncompleteReadError):  # the test is over
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(b'{"cursors":[]}'))
            if number == 0:
                calls += 1
                writer.write(answered(200, {"acked": calls}))
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        door = HttpDoor(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert [await door.ack("run", []) for _ in range(2)] == [1, 2]
        await door.aclose()
    assert (connections, calls) == (2, 2)


@pytest.mark.anyio
async def test_the_answer_to_a_batch_of_many_groups_is_read_whole() -> None:
    """An answer that is no success is read up to 64 KiB."""
    groups = [f"run:{number:06}" for number in range(20_000)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answered(202, {"run_id": "run", "batch_id": "b", "groups": groups, "jobs": 1}))
        await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        door = HttpDoor(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await door.submit(BatchRequest(run_id="run", batch_id="b"))).groups == groups
        await door.aclose()


@pytest.mark.anyio
async def test_what_is_asked_for_behind_the_path_is_sent_with_a_body_too() -> None:
    lines = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readline())
        writer.write(answered(409, {"title": "busy"}))
        await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        door = HttpDoor(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ServiceError):
            await door.move("POST", "run", {"cell": "b"}, {"tenant": "t&u"})
        await door.aclose()
    assert lines == [b"POST /v1/runs/run/move?tenant=t%26u HTTP/1.1\r\n"]


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://127.0.0.1:80/v1/batches", True),
        ("http://node7:8000/v1/batches", False),
        ("http://near:8000/v1/batches", True),
        ("https://127.0.0.1:80/v1/batches", False),
        ("http://user:secret@127.0.0.1:80/v1/batches", False),
        ("http://127.0.0.1:80/with space", False),
        ("http://h\u00f6st/v1/batches", False),
    ],
)
def test_tls_proxies_and_names_of_users_are_for_a_general_client(
    url: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near")
    is_plain.cache_clear()
    assert is_plain(url, near=False) is plain
    is_plain.cache_clear()
