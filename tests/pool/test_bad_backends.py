"""A backend's address and its answers are its tenant's, and may be anything: they concern that backend alone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from prorl_mq.duties import probe_backends
from prorl_mq.duties.backend_control import ANSWER_BYTES, BackendControl, ControlFailed
from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.rules.breaker import MISSES
from prorl_mq.schema import strict
from prorl_mq.schema.codec import encode
from prorl_mq.schema.intake import AddBackend
from prorl_mq.store import policy, pools
from tests.pool.conftest import joined, until
from tests.support.queue import POOL, Queue

pytestmark = pytest.mark.anyio
THEIRS = "aaa:policy"  # comes before POOL
UNCALLABLE = [
    "http://127.0.0.1:99999", "http://127.0.0.1:-1", "http://127.0.0.1:0", "http://127.0.0.1:x", "http://xn--a",
    f"http://{'a' * 64}.x", "http://a..b", "http://[::1", "http://[zz]", "http://a|b", "http://a b", "http://a\tb",
]  # fmt: skip
DIGITS = b'{"weight_version":"' + b"9" * 5_000 + b'"}'
Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Answering], Awaitable[str]]]:
    """Starts servers that answer each request in the given way."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answering) -> str:
            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    await reader.readuntil(b"\r\n\r\n")
                    await answer(writer)
                except (ConnectionError, asyncio.IncompleteReadError):
                    pass
                finally:
                    writer.close()

            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            stack.callback(server.close)
            return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        yield start


async def digits(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DIGITS) + DIGITS)
    await writer.drain()


async def endless(writer: asyncio.StreamWriter) -> None:
    """An answer that never ends, with a byte now and then: no read of it takes long."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


def saying(*parts: bytes) -> Answering:
    async def metrics(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()

    return metrics


async def test_of_large_metrics_the_lines_that_tell_the_load_are_kept(control: BackendControl, serve: Any) -> None:
    """A loaded vLLM tells hundreds of kilobytes, and what is read at once may end anywhere."""
    other = b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3"} 1.0\n' * 5_000
    told = b'vllm:num_requests_running{engine="0"} 3.0'
    address = await serve(saying(other, told[:20], told[20:] + b"\n", other))
    assert len(other) > ANSWER_BYTES
    assert await control.load_lines(address) == [told]


@pytest.mark.parametrize(
    "parts", [[b"x" * 65_536] * 2, [b"vllm:num_requests_running{} 1\n" * 3_000], [b"# a line\n" * 8_000] * 64]
)
async def test_metrics_that_are_too_large_are_left(control: BackendControl, serve: Any, parts: list[bytes]) -> None:
    """One line without end, too many of the load, or too many at all."""
    with pytest.raises(ControlFailed):
        await control.load_lines(await serve(saying(*parts)))


async def add(queue: Queue, address: str) -> None:
    """As an earlier release took it, which refused less."""
    about = encode({"address": address, "protocol": "vllm-generate"})
    await queue.store.join(THEIRS, address, about)


@pytest.mark.parametrize("address", UNCALLABLE)
def test_an_address_that_cannot_be_called_is_refused_where_it_enters(address: str) -> None:
    message = {"type": "backend", "reply": "r", "pool": "policy", "address": address}
    with pytest.raises(strict.Misfit, match=r"cannot be called|has no spaces and no \|"):
        strict.convert(message, AddBackend)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8000", "https://gpu-1.cluster.local", "http://[::1]:8000/v1", "http://xn--bcher-kva.example",
     "http://gpu_7:65535/"],
)  # fmt: skip
def test_an_address_that_can_be_called_is_taken(address: str) -> None:
    assert AddBackend(reply="r", pool="policy", address=address).address == address


@pytest.mark.parametrize("address", UNCALLABLE)
async def test_a_probe_of_any_address_answers(control: BackendControl, address: str) -> None:
    assert await control.alive(address) is False
    with pytest.raises(ControlFailed):
        await control.pause(address, "keep")


async def test_a_dead_backend_is_found_beside_backends_that_cannot_be_called(queue, control, fakes) -> None:
    fake = await fakes()
    for address in UNCALLABLE:
        await add(queue, address)
    await joined(queue, fake)
    await fake.stop()
    health = BackendHealth(queue.store, control, every_s=0.01)
    for _ in range(MISSES):
        await health.turn()
    [shown] = await pools.listing(queue.store, POOL)
    assert not shown.alive
    assert {each.alive for each in await pools.listing(queue.store, THEIRS)} == {False}


async def test_weights_are_loaded_beside_a_backend_that_tells_thousands_of_digits(queue, control, fakes, serve) -> None:
    fake, theirs = await fakes(), await serve(digits)
    await add(queue, theirs)
    await joined(queue, fake)
    await queue.store.announce(THEIRS, 1, "keep", "/weights/1")
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await BackendHealth(queue.store, control, every_s=0.01).turn()
    [shown] = await pools.listing(queue.store, THEIRS)
    assert (shown.alive, shown.version) == (True, None)
    await queue.store.observe(THEIRS, theirs, was="", breaker="", facts={"version": "9" * 5_000})  # as it lies there
    await Weights(queue.store, control).turn()
    assert fake.loaded == ["/weights/7"]


@pytest.mark.parametrize("answer", [endless, flood])
async def test_an_answer_has_a_time_and_a_size_in_all(serve, answer: Answering) -> None:
    control = BackendControl(answer_s=0.5)
    try:
        assert await control.alive(await serve(answer)) is False
    finally:
        await control.aclose()


async def test_a_slow_backend_delays_no_other_probe(queue, fakes, serve, monkeypatch) -> None:
    """More of them than one tenant may have probed at once."""
    monkeypatch.setattr(probe_backends, "AT_ONCE", 1)
    monkeypatch.setattr(probe_backends, "PATIENCE_S", 0.5)
    control, fake = BackendControl(answer_s=600), await fakes()
    for _ in range(3):
        await add(queue, await serve(endless))
    await joined(queue, fake)
    await fake.stop()
    health = BackendHealth(queue.store, control, every_s=0.01)

    async def found_dead() -> bool:
        await health.turn()
        return not (await pools.listing(queue.store, POOL))[0].alive

    try:
        await until(found_dead)
    finally:
        await health.aclose()
        await control.aclose()


async def test_weights_that_take_long_delay_no_other_pool(queue, control, fakes) -> None:
    """Also those that are announced while they load."""
    fake, slow = await fakes(), await fakes()
    slow.load_ms = 600_000
    await add(queue, slow.address)
    await joined(queue, fake)
    await queue.store.announce(THEIRS, 1, "keep", "/weights/1")
    turn = asyncio.create_task(Weights(queue.store, control).turn())

    async def loading() -> bool:
        return [each.step for each in (await policy.progress(queue.store, THEIRS)).values()] == ["paused"]

    async def loaded() -> bool:
        return fake.loaded == ["/weights/7"]

    await until(loading)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await until(loaded)
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)


async def test_a_pool_is_seen_without_the_backend_that_cannot_be_read(queue: Queue, caplog) -> None:
    """An address and one that reads like a fact of it, and bytes that are no description."""
    caplog.set_level(logging.WARNING)
    for address in ("http://a", "http://a|x", "http://c"):
        await add(queue, address)
    await queue.store.join(THEIRS, "http://b", b"\xc1")
    view = await pools.view(queue.store, THEIRS)
    assert list(view.backends) == ["http://a", "http://a|x", "http://c"]
    await pools.view(queue.store, THEIRS)
    assert [record.getMessage().count("'http://b' is left out") for record in caplog.records] == [1]
