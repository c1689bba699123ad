"""Reaps the processes that this process started and others may end."""

import asyncio
import contextlib
import os


class Collector:
    """Waits for processes without a thread each. What still lives at `close` is left to process 1."""

    def __init__(self) -> None:
        self._watched: dict[int, int] = {}  # descriptor: pid

    def watch(self, pid: int) -> None:
        descriptor = os.pidfd_open(pid)
        self._watched[descriptor] = pid
        asyncio.get_running_loop().add_reader(descriptor, self._collect, descriptor)

    def _collect(self, descriptor: int) -> None:
        pid = self._watched.pop(descriptor)
        asyncio.get_running_loop().remove_reader(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        os.close(descriptor)

    def close(self) -> None:
        """Idempotent."""
        for descriptor in list(self._watched):
            self._collect(descriptor)
