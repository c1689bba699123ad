"""What the way over HTTP does beside the calls: large bodies, event loops, and services that are not there."""

import asyncio
import socket
import warnings

import pytest

from prorl_mq.client import AsyncClient, ServiceError
from prorl_mq.client.http import AT_ONCE_BYTES, HttpDoor
from prorl_mq.client.transport import Unreachable
from prorl_mq.process.ports import free_port
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
            with pytest.raises(Unreachable):
                await door.runs()
            await door.aclose()
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
