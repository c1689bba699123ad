"""Workers of this node, each watched by a descriptor of its process: that one is readable once the process has ended.

A process that is stopped, or that has closed its connections, has not ended.
"""

import asyncio
import os
import socket
import struct
from typing import Final, NamedTuple

MOST: Final = 1_024  # workers of one node; more are not watched, and their leases end by themselves
_CREDENTIALS: Final = struct.Struct("3i")  # pid, user, group


class WorkerStart(NamedTuple):
    """One start of a worker: another one may have the same name."""

    name: str
    started_ms: int


class Watching:
    """`dead` gets each watched worker once, as soon as its process has ended."""

    def __init__(self) -> None:
        self.dead: asyncio.Queue[WorkerStart] = asyncio.Queue()
        self._watched: dict[WorkerStart, int] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def follow(self, worker: WorkerStart, descriptor: int) -> None:
        """Watches a process from now on; the descriptor is closed with its end. The same worker again is the same."""
        if worker in self._watched or len(self._watched) >= MOST:
            os.close(descriptor)
            return
        self._watched[worker] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended, worker)

    def _ended(self, worker: WorkerStart) -> None:
        self._let_go(worker)
        self.dead.put_nowait(worker)

    def _let_go(self, worker: WorkerStart) -> None:
        descriptor = self._watched.pop(worker)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Watches nobody any more."""
        for worker in list(self._watched):
            self._let_go(worker)


def opened(connection: socket.socket) -> int | None:
    """A descriptor of the process that has made a connection; None where this one cannot see it, as from another
    container, or where it has ended. It may be of another process that has got the number since: what the peer says
    after this shows that it is not.
    """
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(said)
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError:
        return None
