"""An HTTP proxy on a socket in a sandbox's door: CONNECT to hosts that its task lists.

Invariant: a name is looked up once for a connection, outside the sandbox, and what is connected to is an address that
was judged. What a sandbox can make it hold is bounded: connections, heads, names that are looked up at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from prorl_mq import resolver
from prorl_mq.rules.egress import NamedHost, OperatorList
from sandbox.lifetime import label
from workers.egress.head import MOST_BYTES, ConnectRefused, read
from workers.egress.ledger import Ledger

SOCKET: Final = "egress"  # its name in the door's directory
CONNECTIONS: Final = 64  # at once, of one sandbox
LOOK_UPS: Final = 4  # at once, of one sandbox
CONNECT_S: Final = 10.0
IDLE_S: Final = 600.0  # without a byte in either direction
_CHUNK: Final = 64 << 10
log = logging.getLogger(__name__)
LookUp = Callable[[str], Awaitable[Sequence[str]]]


class EgressProxy:
    """Opens connections for one rollout, and counts them."""

    def __init__(
        self, owner: str, hosts: Sequence[NamedHost], allowed: OperatorList, look_up: LookUp | None = None
    ) -> None:
        self.ledger = Ledger()
        self._owner, self._hosts, self._allowed = owner, frozenset(hosts), allowed
        self._threads = ThreadPoolExecutor(LOOK_UPS, "egress")  # its own: slow names hold up no other rollout
        self._look_up = look_up or partial(resolver.look_up, threads=self._threads)
        self._open: set[asyncio.Task[None]] = set()
        self._over = False

    @contextlib.asynccontextmanager
    async def listening(self, door: Path) -> AsyncIterator[None]:
        """In a sandbox's door. Connections that are open when the context ends are cut."""
        (door / SOCKET).unlink(missing_ok=True)  # of a worker that died during the attempt before
        with label.listen(door, SOCKET) as sock:
            (door / SOCKET).chmod(0o666)  # the sandbox's user is another; the directory's name is the secret
            server = await asyncio.start_unix_server(self._accepted, sock=sock, limit=MOST_BYTES)
            try:
                yield
            finally:
                self._over = True  # also for those that were accepted and have not begun
                server.close()
                for task in tuple(self._open):
                    task.cancel()
                self._threads.shutdown(wait=False, cancel_futures=True)
                await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._over:
            writer.transport.abort()
            return
        if len(self._open) >= CONNECTIONS:
            self.ledger.refused("", f"a sandbox has at most {CONNECTIONS} connections")
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            with contextlib.suppress(OSError, EOFError):
                await self._served(reader, writer)
        except asyncio.CancelledError:
            if not self._over:
                raise  # else asyncio logs a trace for each connection that was open at the end
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = await read(reader)
            there = await self._connected(target)
        except ConnectRefused as refusal:
            if self.ledger.refused(refusal.asked, str(refusal)):
                log.warning("egress of %s to %r refused: %s", self._owner, refusal.asked, refusal)
            writer.write(f"HTTP/1.1 {refusal.status}\r\nConnection: close\r\n\r\negress: {refusal}\n".encode())
            await writer.drain()
            writer.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # else what was not read resets the connection under the answer
                    while await reader.read(_CHUNK):
                        pass
            return
        line = self.ledger.opened(str(target))
        if line[0] == 1:
            log.info("egress of %s to %s opened", self._owner, target)
        await _joined((reader, writer), there, line)

    async def _connected(self, target: NamedHost) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `ConnectRefused`."""
        if target not in self._hosts:
            raise ConnectRefused("403 Forbidden", str(target), "the task does not list this host with this port")
        try:
            found = await self._look_up(target.host)
        except (OSError, UnicodeError):
            raise ConnectRefused("502 Bad Gateway", str(target), "the host has no address") from None
        judged = [each for each in found if self._allowed.reaches(each)]
        if not judged:
            told = "the host's address is internal, in no network that the operator lists"
            raise ConnectRefused("403 Forbidden", str(target), told)
        for address in judged:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(address, target.port)
        raise ConnectRefused("502 Bad Gateway", str(target), "the host cannot be reached")


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _joined(near: _Ends, far: _Ends, line: list[int]) -> None:
    """Carries bytes both ways until both sides have ended, one has failed, or nothing comes for long."""
    try:
        near[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.timeout(IDLE_S) as idle, asyncio.TaskGroup() as both:
            both.create_task(_carried(near[0], far[1], line, 1, idle))
            both.create_task(_carried(far[0], near[1], line, 2, idle))
    except* (OSError, TimeoutError):
        pass
    finally:
        far[1].transport.abort()


async def _carried(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, line: list[int], place: int, idle: asyncio.Timeout
) -> None:
    loop = asyncio.get_running_loop()
    while piece := await source.read(_CHUNK):
        idle.reschedule(loop.time() + IDLE_S)
        line[place] += len(piece)
        target.write(piece)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
