"""Servers that speak as much of Redis's protocol as who looks for a primary needs, and answer what they are told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Final

Say = Callable[[Sequence[str]], Iterable[bytes]]  # a command → the parts of its reply; none: it never comes
ENTERING: Final = frozenset({"AUTH", "CLIENT"})
OK: Final = b"+OK\r\n"
PART_S: Final = 0.005  # between two parts


def bulk(*texts: str) -> bytes:
    """Each as a string."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(each.encode()), each.encode()) for each in texts)


def row(*texts: str) -> bytes:
    """All as an array."""
    return b"*%d\r\n%b" % (len(texts), bulk(*texts))


def silent(_: Sequence[str]) -> Iterable[bytes]:
    """It accepts a connection, and never answers."""
    return ()


def halting(command: Sequence[str]) -> Iterable[bytes]:
    """It lets its callers in, and then answers no more."""
    return (OK,) if command[0] in ENTERING else ()


def dripping(command: Sequence[str]) -> Iterable[bytes]:
    """Its answer never ends, and never stands still for long."""
    return (OK,) if command[0] in ENTERING else chain((b"$1000000\r\n",), repeat(b"x", 1_000_000))


def sentinel(port: int, epoch: int, replicas: int = 1) -> Say:
    """It names a primary, by an election."""

    def say(command: Sequence[str]) -> Iterable[bytes]:
        match command:
            case ["SENTINEL", "MASTER", _]:
                found = {"ip": "127.0.0.1", "port": port, "config-epoch": epoch, "num-slaves": replicas}
                return (row(*(str(each) for pair in found.items() for each in pair)),)
            case ["INFO", *_]:
                return (bulk("sentinel_tilt:0\r\n"),)
            case _:
                return (OK,)

    return say


def server(role: str, value: str, about: str = "role:master\r\nconnected_slaves:0\r\n") -> Say:
    """A data server: its role as it greets, what it answers to GET (nothing, if empty) and to INFO."""

    def say(command: Sequence[str]) -> Iterable[bytes]:
        match command[0]:
            case "HELLO":
                return (row("server", "redis", "role", role),)
            case "GET":
                return (bulk(value),) if value else ()
            case "INFO":
                return (bulk(about),)
            case _:
                return (OK,)

    return say


@contextlib.asynccontextmanager
async def listening(*says: Say, slowly: float = 0.0) -> AsyncIterator[list[int]]:
    """Servers on loopback: their ports. All but the first answer `slowly`, after so many seconds."""

    async def serve(say: Say, wait_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                reply = say(await _command(reader))
                await asyncio.sleep(wait_s)
                for part in reply:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(PART_S)
        writer.close()

    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for place, say in enumerate(says):
            made = await asyncio.start_server(partial(serve, say, slowly if place else 0.0), "127.0.0.1")
            stack.callback(made.close)
            ports.append(made.sockets[0].getsockname()[1])
        yield ports


async def _command(reader: asyncio.StreamReader) -> list[str]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    words = []
    for _ in range(count):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        words.append((await reader.readexactly(size + 2))[:-2].decode())
    return words
