"""A small HTTP listener that a Prometheus scrapes, and the file by which it finds it.

Every process takes a port of its own, so an array of workers on a node never clashes. Where it listens stands in
`STATE/metrics/NAME.json`, as Prometheus' file-based service discovery reads it.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from prorl_mq.errors import ConfigurationError

OFF: Final = "off"
LOOPBACK: Final = "127.0.0.1:0"
HEAD_S: Final = 5.0
HEAD_BYTES: Final = 8192
FLAG_HELP: Final = "HOST:PORT for Prometheus, port 0 takes a free one; or unix:PATH, or off"
Fresh = Callable[[], Awaitable[None]]
log = logging.getLogger("workers.metrics")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of file-based service discovery."""

    targets: list[str]
    labels: Mapping[str, str]


async def _nothing() -> None: ...


@contextlib.asynccontextmanager
async def listening(
    where: str,
    registry: CollectorRegistry,
    *,
    state_dir: Path,
    name: str,
    labels: Mapping[str, str],
    fresh: Fresh = _nothing,
) -> AsyncIterator[str | None]:
    """Serves `GET /metrics` until the context ends; gives the address. `fresh` runs before each answer.

    Raises `ConfigurationError` where the address cannot be listened on.
    """
    if where == OFF:
        yield None
        return

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await _answer(head, writer, registry, fresh)
        writer.close()

    server = await _serve(where, connected)
    address = where if where.startswith("unix:") else _address(where, server.sockets[0])
    try:
        with _discoverable(state_dir / "metrics", name, address, labels):
            yield address
    finally:
        server.close()


async def _serve(
    where: str, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> asyncio.Server:
    try:
        if where.startswith("unix:"):
            return await asyncio.start_unix_server(connected, where.removeprefix("unix:"), limit=HEAD_BYTES)
        host, _, port = where.rpartition(":")
        return await asyncio.start_server(connected, host.strip("[]"), int(port), limit=HEAD_BYTES)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"--metrics-listen {where} cannot be listened on ({error}): give HOST:PORT, unix:PATH or {OFF}"
        ) from None


async def _answer(head: bytes, writer: asyncio.StreamWriter, registry: CollectorRegistry, fresh: Fresh) -> None:
    line = head.split(b"\r\n", 1)[0].split(b" ")
    if line[:1] == [b"GET"] and line[1:2] in ([b"/metrics"], [b"/"]):
        await fresh()
        status, kind, body = "200 OK", CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)
    else:
        status, kind, body = "404 Not Found", "text/plain", b"there is GET /metrics here\n"
    headers = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n".encode() + body)
    await writer.drain()


def _address(where: str, sock: socket.socket) -> str:
    """The address for others: a listener on every address is known by this host's name."""
    host = where.rpartition(":")[0]
    anywhere = host in {"0.0.0.0", "[::]", "::", ""}  # noqa: S104 - asked for by the operator
    return f"{socket.gethostname() if anywhere else host}:{sock.getsockname()[1]}"


@contextlib.contextmanager
def _discoverable(directory: Path, name: str, address: str, labels: Mapping[str, str]) -> Iterator[None]:
    """Prometheus cannot scrape Unix sockets itself, so none of them is listed."""
    if address.startswith("unix:"):
        try:
            yield
        finally:
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)
        return
    path = directory / f"{name}.json"
    target = Target(targets=[address], labels={**labels, "pid": str(os.getpid())})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _forget_the_dead(directory, labels["node"])
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode([target]))
        fresh.rename(path)
    except OSError as error:  # numbers are no reason not to work
        log.warning("metrics at %s cannot be discovered, %s cannot be written: %s", address, path, error)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _forget_the_dead(directory: Path, node: str) -> None:
    """Entries of this node's processes that were killed."""
    for path in directory.glob("*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError, KeyError, IndexError):
            [about] = msgspec.json.decode(path.read_bytes(), type=list[Target])
            if about.labels["node"] == node and not Path(f"/proc/{about.labels['pid']}").exists():
                path.unlink(missing_ok=True)
