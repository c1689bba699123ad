"""A tool call over a Unix socket and over loopback TCP: the same server, outside any sandbox, and the same client."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.redis_server import die_with_parent
from bench.sandbox.contender import Contender, Measure, Samples, Setting
from bench.sandbox.ours import timed
from sandbox.isolators.payload import server_source
from sandbox.lifetime.client import Settings, held_limits
from sandbox.lifetime.wire import LENGTHS
from sandbox.protocol import SandboxLimits

PAYLOADS = {"100 B": 100, "10 kB": 10_000, "1 MB": 1_000_000}
LIMITS = {**held_limits(SandboxLimits()), "processes": 1 << 16}  # of a user who runs other things too


def listen(transport: str, directory: Path) -> socket.socket:
    if transport == "tcp":
        return socket.create_server(("127.0.0.1", 0), backlog=128)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "socket"))
    listener.listen(128)
    return listener


class Client:
    """One connection a call, as our own client has it."""

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self._family, self._address = family, address

    async def call(self, header: dict[str, Any], payload: bytes = b"") -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(self._family) as connection:
            connection.setblocking(False)
            if self._family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, self._address)
            head = msgspec.json.encode(header)
            await loop.sock_sendall(connection, LENGTHS.pack(len(head), len(payload)) + head + payload)
            data, size = bytearray(), LENGTHS.size
            while len(data) < size:
                chunk = await loop.sock_recv(connection, 256 << 10)
                if not chunk:
                    raise EOFError(f"the server closed the connection of {header['op']!r}")
                data += chunk
                if len(data) >= LENGTHS.size:
                    size = LENGTHS.size + sum(LENGTHS.unpack_from(data))
        head_size = LENGTHS.unpack_from(data)[0]
        said = msgspec.json.decode(data[LENGTHS.size : LENGTHS.size + head_size])
        assert not {"fault", "errno"} & set(said), said
        return bytes(data[LENGTHS.size + head_size :])


@asynccontextmanager
async def calls(setting: Setting, *, transport: str) -> AsyncIterator[Measure]:
    """The call reads a file of the payload's size."""
    place = setting.place(f"transport-{transport}")
    (place / "server.py").write_bytes(server_source())
    with listen(transport, place) as listener:
        client = Client(listener.family, listener.getsockname())
        argv = [sys.executable, "-I", "-S", str(place / "server.py"), "--front", str(listener.fileno())]
        server = await asyncio.create_subprocess_exec(
            *argv, pass_fds=[listener.fileno()], stdin=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent
        )
    try:
        settings = Settings(cwd=str(place), env={"PATH": "/usr/bin:/bin"}, limits=LIMITS, output_bytes=64 << 10)
        await client.call({"op": "configure", **msgspec.to_builtins(settings)})
        for name, size in PAYLOADS.items():
            (place / name).write_bytes(b"x" * size)

        async def read(name: str) -> None:
            found = await client.call({"op": "read_file", "path": str(place / name), "limit_bytes": 16 << 20})
            assert len(found) == PAYLOADS[name]

        async def measure(count: int) -> Samples:
            return {f"tool call, {name}": await timed(partial(read, name), count) for name in PAYLOADS}

        yield measure
    finally:
        server.terminate()
        await server.wait()


def contenders() -> list[Contender]:
    return [
        Contender(name="host: Unix socket", samples=100, make=partial(calls, transport="unix")),
        Contender(
            name="host: loopback TCP", samples=100, make=partial(calls, transport="tcp"), ours="host: Unix socket"
        ),
    ]
