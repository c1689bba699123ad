"""The link to a sandbox's socket, on both event loops: nothing is lost, and nothing is held without limit."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.lifetime import link
from sandbox.lifetime.link import HELD_BYTES, Link

pytestmark = pytest.mark.anyio
BIG = bytes(range(256)) * (20 << 10)  # 5 MiB: more than a socket takes, and than a link holds


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


async def received(made: Link, size: int) -> bytes:
    while len(made.data) < size:
        await made.more()
    return bytes(made.data)


async def test_bytes_that_came_before_anybody_waited_are_there(ends: tuple[socket.socket, socket.socket]) -> None:
    made = Link(ends[0])
    ends[1].sendall(b"abc")
    assert await received(made, 3) == b"abc"
    made.close()


async def test_what_came_before_the_end_is_read_and_the_end_is_said_again(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    made = Link(ends[0])
    ends[1].sendall(b"last")
    ends[1].close()
    assert await received(made, 4) == b"last"
    for _ in range(2):
        with pytest.raises(EOFError):
            await made.more()
    made.close()


async def test_an_answer_can_be_read_though_what_is_sent_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    made = Link(ends[0])
    ends[1].sendall(b"no")
    ends[1].close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        await made.send(BIG)
    assert await received(made, 2) == b"no"
    made.close()


async def test_a_large_request_is_sent_whole_to_a_slow_reader(ends: tuple[socket.socket, socket.socket]) -> None:
    made, theirs = Link(ends[0]), ends[1]

    def read() -> bytes:
        taken = bytearray()
        while len(taken) < len(BIG):
            taken += theirs.recv(7_000)
        return bytes(taken)

    reading = asyncio.get_running_loop().run_in_executor(None, read)
    await made.send(BIG)
    assert await reading == BIG
    made.close()


@pytest.mark.parametrize("rests", [True, False], ids=["", "control"])
async def test_reading_rests_while_nobody_takes_what_came(
    ends: tuple[socket.socket, socket.socket], rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not rests:
        monkeypatch.setattr(link, "HELD_BYTES", len(BIG))
    made = Link(ends[0])
    sending = asyncio.get_running_loop().run_in_executor(None, ends[1].sendall, BIG)
    await received(made, 1)
    for _ in range(2_000):  # turns of the loop in which it could read on
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while not rests and len(made.data) < len(BIG):
            await asyncio.sleep(0.001)
    assert (len(made.data) <= HELD_BYTES + link.PIECE_BYTES) is rests
    assert await received(made, len(BIG)) == BIG
    await sending
    made.close()


async def test_a_cancelled_wait_leaves_the_link_as_it_was(ends: tuple[socket.socket, socket.socket]) -> None:
    made = Link(ends[0])
    waiting = asyncio.create_task(made.more())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    ends[1].sendall(b"then")
    assert await received(made, 4) == b"then"
    made.close()


def test_a_link_can_be_closed_twice_and_after_its_loop() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def made() -> Link:
        return Link(ours)

    link_of_a_closed_loop = asyncio.run(made())
    link_of_a_closed_loop.close()
    link_of_a_closed_loop.close()
    assert theirs.recv(1) == b""
    theirs.close()
