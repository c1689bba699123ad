"""Keep-alive connections: used again, replaced when dropped, never the cause of a lost or doubled call."""

import asyncio

import pytest

from prorl_mq.process.http_connection import Connection, HttpAnswer
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import FakeFault
from tests.unit.workers.inference.conftest import PROMPT, cancelled, info, policy_over, request
from workers.inference.assignment import FixedAssigner
from workers.inference.clients import InferenceClients
from workers.inference.protocol import InferenceError
from workers.inference.transport import HttpTransport, Stale, normalise

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: uvloop's transports are of another class, and tell of a closed connection in another order."""
    return "asyncio", {"use_uvloop": request.param}


async def test_calls_in_a_row_share_one_connection(clients: InferenceClients, backend: FakeBackend) -> None:
    for _ in range(5):
        await clients.generate(info(backend), request())
    assert backend.server.accepted == 1


async def test_a_connection_that_the_server_closed_meanwhile_costs_nothing(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    """uvicorn closes idle connections after five seconds; the next turn of an agent often comes later."""
    policy = policy_over(clients, backend)
    await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert backend.server.drop_idle() == 1
    await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert (backend.server.accepted, backend.states(), policy.moves) == (2, ["done", "done"], 0)


async def test_a_call_that_a_kept_connection_dropped_is_sent_again_under_a_new_id(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    """The server may have begun with it: an abort of the first must not hit the second, and only one answer counts."""
    assigner = FixedAssigner(info(backend))
    policy = policy_over(clients, assigner=assigner)
    await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    backend.fail_next(FakeFault.RESET)
    answer = await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert backend.states() == ["done", "failed", "done"]
    assert len({each.call.request_id for each in backend.requests}) == 3
    assert len(answer.ids) == 4
    assert assigner.failures == {}


async def test_a_drop_on_a_fresh_connection_is_the_backends_failure(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    await clients.generate(info(backend), request())
    backend.fail_next(FakeFault.RESET, FakeFault.RESET)
    with pytest.raises(Stale):
        await clients.generate(info(backend), request())
    with pytest.raises(InferenceError, match="before an answer") as caught:
        await clients.generate(info(backend), request())
    assert not isinstance(caught.value, Stale)
    assert backend.states() == ["done", "failed", "failed"]


async def test_what_idled_beside_a_dropped_connection_is_not_used_again(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    backend.latency_ms = 5
    policies = [policy_over(clients, backend) for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        for policy in policies:
            group.create_task(policy.generate(PROMPT, max_tokens=4, temperature=1.0))
    assert backend.server.drop_idle() == 8
    for policy in policies:
        await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert (backend.server.accepted, set(backend.states())) == (9, {"done"})


@pytest.mark.parametrize("times", [1, 2])
async def test_a_connection_that_is_closed_before_it_is_used_is_opened_once_more(times: int) -> None:
    """Nothing was sent: so this is safe even for what may not be sent twice."""
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        if accepted > times:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        writer.close()

    class Slow(HttpTransport):
        async def _open(self, address: str) -> Connection:
            connection = await super()._open(address)
            if accepted <= times:
                async with asyncio.timeout(60):
                    while not connection.closed:  # the server's end of it is on its way
                        await asyncio.sleep(0)
            return connection

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Slow(answer_s=20) as transport:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        if times == 1:
            assert (await transport.post(address, "/", b"")).body == b"hi"
        else:
            with pytest.raises(InferenceError, match="before it was used"):
                await transport.post(address, "/", b"")
    assert accepted == 2


async def test_calls_to_a_dead_backend_are_given_up_and_others_go_on(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    backend.fault = other.fault = FakeFault.HANG
    dead = asyncio.create_task(clients.generate(info(backend), request()))
    alive = asyncio.create_task(clients.generate(info(other), request()))
    await backend.wait_running(1)
    await other.wait_running(1)
    assert clients.transport.give_up(backend.address, "it is dead") == 1
    with pytest.raises(InferenceError, match="given up: it is dead"):
        await dead
    assert not alive.done()
    assert await cancelled(alive)


async def test_a_drop_within_the_answer_is_not_sent_again(clients: InferenceClients, backend: FakeBackend) -> None:
    await clients.generate(info(backend), request())
    backend.fail_next(FakeFault.CUT)
    with pytest.raises(InferenceError, match="within the answer"):
        await clients.generate(info(backend), request())
    assert len(backend.requests) == 2


async def test_the_call_after_a_500_uses_a_fresh_connection(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.fail_next(FakeFault.ERROR)
    with pytest.raises(InferenceError, match="500"):
        await clients.generate(info(backend), request())
    await clients.generate(info(backend), request())
    assert backend.server.accepted == 2


async def test_many_calls_at_once_each_get_their_own_answer(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.latency_ms = 2
    prompts = [[number, number + 1] for number in range(100)]
    alone = [await clients.generate(info(backend), request(prompt_ids=prompt)) for prompt in prompts]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(clients.generate(info(backend), request(prompt_ids=prompt))) for prompt in prompts]
    assert [task.result().ids for task in tasks] == [answer.ids for answer in alone]


async def test_a_closed_transport_sends_nothing_more(backend: FakeBackend) -> None:
    clients = InferenceClients()
    await clients.aclose()
    await clients.aclose()
    with pytest.raises(InferenceError, match="closed"):
        await clients.generate(info(backend), request())
    assert not backend.requests


async def test_closing_ends_calls_under_way(backend: FakeBackend) -> None:
    clients = InferenceClients()
    backend.fault = FakeFault.HANG
    task = asyncio.create_task(clients.generate(info(backend), request()))
    await backend.wait_running(1)
    await clients.aclose()
    with pytest.raises(InferenceError):
        await task
    await backend.wait_running(0)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", HttpAnswer(200, b"hi")),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", HttpAnswer(200, b"until the end")),
        (b"HTTP/1.0 404 Gone\r\ncontent-length: 0\r\n\r\n", HttpAnswer(404, b"")),
        (b"HTTP/1.1 204 None\r\n\r\n", HttpAnswer(204, b"")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", HttpAnswer(200, b"x")),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            HttpAnswer(200, b"abcde"),
        ),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_answers_are_read_however_they_are_framed_and_split(
    wire: bytes, expected: HttpAnswer, piece: int
) -> None:
    assert await _answer_of(wire, piece) == expected


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-6\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1_0\r\nabc\r\n",
        b"",
    ],
)
async def test_what_is_not_http_is_an_inference_error(wire: bytes) -> None:
    with pytest.raises(InferenceError):
        await _answer_of(wire, 10_000)


@pytest.mark.parametrize("headers", [b"content-length: 1000000", b"transfer-encoding: chunked", b"x: y"])
async def test_of_a_failure_the_first_64_kib_are_read(headers: bytes) -> None:
    for status, kept in ((b"500", True), (b"302", True), (b"200", False)):
        body = b"f4240\r\n" * (b"chunked" in headers) + b"w" * 1_000_000 + b"\r\n0\r\n\r\n" * (b"chunked" in headers)
        answer = await _answer_of(b"HTTP/1.1 %s No\r\n%s\r\n\r\n%s" % (status, headers, body), 100_000)
        assert (answer.status, len(answer.body)) == (int(status), 65_536 if kept else 1_000_000)


async def _answer_of(wire: bytes, piece: int) -> HttpAnswer:
    """What the transport makes of these bytes, sent in pieces by a server that then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(wire), piece):
            writer.write(wire[start : start + piece])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, HttpTransport(answer_s=5) as transport:
        port = server.sockets[0].getsockname()[1]
        return await transport.get(f"http://127.0.0.1:{port}", "/")


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://node7:8000/", "http://node7:8000"),
        ("http://node7:8000/v1", "http://node7:8000"),
        ("https://node7/replica/v1/", "https://node7/replica"),
    ],
)
def test_addresses_of_either_form_become_one(given: str, normal: str) -> None:
    assert normalise(given) == normal


@pytest.mark.parametrize("given", ["", "ftp://x", "http://", "http://host:1?x=1"])
def test_what_is_no_address_is_named_in_the_error(given: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        normalise(given)


async def test_a_cancelled_call_closes_its_connection(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.fault = FakeFault.HANG
    task = asyncio.create_task(clients.generate(info(backend), request()))
    await backend.wait_running(1)
    assert await cancelled(task)
    await backend.wait_running(0)
    assert backend.states() == ["gone"]
