"""Requests to a keeper and its answers: one connection per request, one line of JSON each way.

A sandbox that was given away is acknowledged with one more byte; if that does not come, it is destroyed. So is the
answer to `WatchWorker`; if that does not come, the process is not watched.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec

from sandbox.keeper.pool_shape import Shape
from sandbox.lifetime import label
from sandbox.protocol import SandboxHandle

ACKNOWLEDGED = b"k"
CHUNK_BYTES = 64 << 10
T = TypeVar("T")


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """Give me a warm sandbox, and write this owner into its label."""

    kind: str
    shape: Shape
    owner: str


class Count(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """Say how you are doing."""


class WatchWorker(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Watch the process that asks: it is this start of a worker. The connection stays open."""

    name: str
    started_ms: int


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `WatchWorker`, which is to be acknowledged: it shows that the process lives that was seen."""

    seen: bool


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox; None where there is no warm one."""

    handle: SandboxHandle | None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Present state, and events since this keeper started. Medians are of the last 256, in ms."""

    live: int  # sandboxes that belong to jobs
    warm: int
    warm_hits: int
    cold_starts: int  # requests that no warm sandbox served
    leaked_destroyed: int  # sandboxes that nobody owned
    start_ms_p50: float | None
    hand_out_ms_p50: float | None
    watched: int = 0  # workers whose end this keeper sees at once


@contextlib.asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[socket.socket]:
    """A connection to the keeper of this place. Raises `OSError` where none listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        with label.socket_address(directory) as address:
            await asyncio.get_running_loop().sock_connect(connection, address)
        yield connection


async def ask(connection: socket.socket, request: Take | Count | WatchWorker, answer: type[T]) -> T:
    """Raises `OSError` when the keeper dies before it has answered."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, msgspec.json.encode(request) + b"\n")
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = await loop.sock_recv(connection, CHUNK_BYTES)
        if not chunk:
            raise ConnectionError("the keeper closed the connection without an answer")
        data += chunk
    return msgspec.json.decode(data, type=answer)


async def counts(directory: Path) -> Counts:
    """The counts of a keeper."""
    async with connected(directory) as connection:
        return await ask(connection, Count(), Counts)
