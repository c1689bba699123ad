"""A tenant's backend is judged at each connect, and nothing that it sends is repeated to its tenant.

Each guard has its control: the same address without a reach, as the operator adds it, is called.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.rules.reach import Reach
from prorl_mq.store import pools as stored
from prorl_mq.store.pools import BackendInfo
from prorl_mq.testing.fake_backend import FakeBackend
from tests.pool.conftest import attempt, in_run, turn
from tests.support.queue import POOL, Queue
from workers.inference.clients import InferenceClients
from workers.inference.protocol import InferenceError
from workers.stages.backends import Pools

pytestmark = pytest.mark.anyio
NAME = "gpu7.cluster.test"
OPEN = Reach(declared=("127.0.0.1",))  # the operator allows this tenant its own loopback
SECRET = b"the-secret-of-an-internal-service"


@pytest.fixture
def leads_to(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the addresses behind `NAME`, as whoever owns its zone does."""
    addresses, real = ["127.0.0.1"], socket.getaddrinfo

    def answers(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host not in {NAME, NAME.encode()}:
            return real(host, port, *args, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port or 0)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answers)

    def change(*found: str) -> None:
        addresses[:] = found

    return change


@pytest.fixture
async def internal() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A service that is no backend, and the requests that have reached it."""
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(SECRET), SECRET))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


async def join(queue: Queue, address: str, reach: Reach | None) -> None:
    await stored.join(queue.store, POOL, BackendInfo(address=address, protocol="vllm-generate", reach=reach))


async def rollout(queue: Queue, pools: Pools) -> str:
    """What a tenant is told of one attempt."""
    [held] = await in_run(queue)
    try:
        return str((await turn(attempt(pools, held))).finish_reason)
    except InferenceError as error:
        return str(error)


async def described(pools: Pools, address: str, reach: Reach | None, protocol: str | None = None) -> str:
    """What a job is told of a backend at its first call."""
    try:
        found = await pools.describe(POOL, BackendInfo(address=address, protocol=protocol, reach=reach))
    except InferenceError as error:
        return str(error)
    return found.protocol


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_name_that_leads_elsewhere_later_is_not_called_there(
    pools: Pools, control: BackendControl, fakes: Any, leads_to: Any, guarded: bool
) -> None:
    """DNS rebinding: it was judged while it led to a node."""
    fake: FakeBackend = await fakes()
    address = f"http://{NAME}:{port_of(fake.address)}"
    leads_to("127.0.0.1")
    reach = Reach() if guarded else None
    told = await described(pools, address, reach)
    assert await control.alive(address, reach) is not guarded
    assert bool(fake.requests) is not guarded
    assert ("not among those that its tenant may reach" in told) is guarded


async def test_one_closed_address_behind_a_name_closes_it(control: BackendControl, fakes: Any, leads_to: Any) -> None:
    fake: FakeBackend = await fakes()
    address = f"http://{NAME}:{port_of(fake.address)}"
    leads_to("127.0.0.1", "169.254.169.254")
    assert await control.alive(address, Reach(declared=("127.0.0.1",))) is False
    assert await control.alive(address) is True
    leads_to("127.0.0.1")
    assert await control.alive(address, Reach(declared=("127.0.0.1",))) is True


async def test_a_tenants_backend_is_called_by_the_address_that_was_judged(
    queue: Queue, pools: Pools, control: BackendControl, fakes: Any, leads_to: Any
) -> None:
    """The next address is tried where none listens at the first, as it is for a name of the operator's."""
    fake: FakeBackend = await fakes()
    address = f"http://{NAME}:{port_of(fake.address)}"
    leads_to("127.0.0.2", "127.0.0.1")
    await join(queue, address, Reach(declared=("127.0.0.1", "127.0.0.2")))
    assert await rollout(queue, pools) == "length"
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await Weights(queue.store, control).turn()
    assert fake.loaded == ["/weights/7"]
    await BackendHealth(queue.store, control, every_s=0.01).turn()
    [shown] = await stored.listing(queue.store, POOL)
    assert (shown.alive, shown.version) == (True, "7")


async def test_a_backend_that_was_added_with_v1_is_called(queue: Queue, pools: Pools, fakes: Any) -> None:
    fake: FakeBackend = await fakes()
    await join(queue, f"{fake.address}/v1", None)
    assert await rollout(queue, pools) == "length"


async def test_what_an_internal_service_answers_is_repeated_to_nobody(
    queue: Queue, pools: Pools, control: BackendControl, internal: tuple[str, list[bytes]], caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    address, seen = internal
    await join(queue, address, OPEN)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await Weights(queue.store, control).turn()
    health = BackendHealth(queue.store, control, every_s=0.01)
    await health.turn()
    told = [
        await rollout(queue, pools),
        str(await stored.listing(queue.store, POOL)),
        str(await stored.policy_status(queue.store, POOL)),
    ]
    assert seen, "it was asked"
    assert "/pause answered 500" in told[2]
    assert "answered 500" in told[0]
    assert not any(SECRET.decode() in each for each in told)
    assert SECRET.decode() in caplog.text, "the operator's log has it"


async def test_the_operators_backend_is_quoted(pools: Pools, internal: tuple[str, list[bytes]]) -> None:
    """The control of the test before, and of use: vLLM says what it did not like about a request."""
    assert SECRET.decode() in await described(pools, internal[0], None)


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-" + SECRET + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: " + SECRET + b"\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(SECRET), SECRET),
     b"HTTP/1.1 302 Found\r\nLocation: http://" + SECRET + b"/\r\nContent-Length: 0\r\n\r\n"],
)  # fmt: skip
@pytest.mark.parametrize("protocol", ["vllm-generate", None])
async def test_no_form_of_an_answer_is_repeated(pools: Pools, answer: bytes, protocol: str | None) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        told = await described(pools, address, OPEN, protocol)
    assert told.startswith(f"backend {address}")
    assert SECRET.decode() not in told


async def test_a_failure_of_a_control_call_has_fixed_words(control: BackendControl, fakes: Any) -> None:
    fake, gone, silent = await fakes(), await fakes(), BackendControl(answer_s=0)
    fake.refused["/resume"] = 418
    await gone.stop()
    for each, address, reach, words in (
        (control, fake.address, None, "/resume answered 418; the log of the API has its words"),
        (control, gone.address, None, "/resume: refused"),
        (control, gone.address, Reach(), "/resume: its address may not be called"),
        (silent, fake.address, None, "/resume: timed out"),
    ):
        with pytest.raises(ControlFailed) as caught:
            await each.resume(address, reach)
        assert str(caught.value).endswith(words)
    await silent.aclose()


async def test_a_redirect_is_not_followed(control: BackendControl, fakes: Any) -> None:
    fake: FakeBackend = await fakes()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 Go\r\nLocation: %s/pause\r\nContent-Length: 0\r\n\r\n" % fake.address.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ControlFailed, match="answered 307"):
            await control.pause(address, "keep")
    assert fake.calls == []


async def test_clients_of_the_operators_tools_judge_nothing(clients: InferenceClients, fakes: Any) -> None:
    fake: FakeBackend = await fakes()
    clients.transport.judge(fake.address, Reach())
    with pytest.raises(InferenceError, match="may reach"):
        await clients.transport.get(fake.address, "/v1/models")
    clients.transport.judge(fake.address, None)
    assert (await clients.transport.get(fake.address, "/v1/models")).status == 200
