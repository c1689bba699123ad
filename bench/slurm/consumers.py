"""Consumers without work behind them: each keeps the connections and sends the commands of an idle worker.

    python -m bench.slurm.consumers SOCKET FIRST COUNT

It holds COUNT of them until its input ends, and prints the delays of the jobs that they were given, in milliseconds.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from prorl_mq.schema.codec import encode
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import GROUP, Keys
from prorl_mq.store.scripts import script
from prorl_mq.store.store import renewal

BLOCK_MS: Final = 1_000  # as a worker reads
CANCELS_MS: Final = 5_000  # as it follows cancels
LEASE_MS: Final = 15_000
KEYS: Final = Keys("bench")


def packed(*words: str | bytes | int) -> bytes:
    """A command as it goes over the wire."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


class Repeating(asyncio.Protocol):
    """Sends one command again whenever it is answered. `delays` gets the age of each job in an answer."""

    def __init__(self, command: bytes, delays: list[float]) -> None:
        self._command, self._delays = command, delays
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._command)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if b"sent:" in data:
            now = time.time()
            sent = [part.partition(b"\r")[0] for part in data.split(b"sent:")[1:]]
            self._delays += [1000 * (now - float(each)) for each in sent]
        self._transport.write(self._command)


class Beating(asyncio.Protocol):
    """Sends a heartbeat every third of a lease."""

    def __init__(self, command: bytes, first_s: float) -> None:
        self._command, self._first_s = command, first_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        asyncio.get_running_loop().call_later(self._first_s, self._beat, transport)

    def _beat(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write(self._command)
            asyncio.get_running_loop().call_later(LEASE_MS / 3000, self._beat, transport)


def heartbeat(name: str, node: str) -> bytes:
    about: dict[str, str | int] = {
        "stage": "run", "node": node, "slots": 8, "busy": 0, "pid": 1, "started_ms": 0, "sandbox": "none",
    }  # fmt: skip
    beat = renewal(KEYS, name, about, [], lease_ms=LEASE_MS)
    return packed("EVALSHA", script("renew").sha, len(beat.keys), *beat.keys, encode(beat.arguments))


async def connect(protocol: Callable[[], asyncio.Protocol], path: str) -> None:
    """Blocking, for asyncio takes a full queue of the listening side for a connection that was made."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(path)
    connected.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(protocol, sock=connected)


async def hold(path: str, first: int, count: int) -> None:
    delays = list[float]()
    cancels = packed("XREAD", "BLOCK", CANCELS_MS, "STREAMS", KEYS.cancels, "$")
    for number in range(first, first + count):
        name = f"run-{number}"
        read = ("XREADGROUP", "GROUP", GROUP, name, "COUNT", 8, "BLOCK", BLOCK_MS, "NOACK", "STREAMS")
        command = packed(*read, KEYS.stage(Stage.RUN), ">")
        await connect(partial(Repeating, command, delays), path)
        await connect(partial(Repeating, cancels, []), path)
        beat, first_s = heartbeat(name, f"n{number}"), (number % 100) / 100 * LEASE_MS / 3000
        await connect(partial(Beating, beat, first_s), path)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(delays), flush=True)


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
