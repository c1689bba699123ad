"""The first process of a sandbox: it adopts orphans, and when it ends, everything below it has ended.

In an Apptainer sandbox it is process 1 of a PID namespace; in a local one it does itself what the kernel does there.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

from sandbox.server.libc import CHILD_SUBREAPER, PARENT_DEATH_SIGNAL, prctl


def run_front(serve: Callable[[], None]) -> None:
    """Runs the execution server as its child; SIGTERM, or the server's end, ends all."""
    prctl(CHILD_SUBREAPER, 1)
    server = os.fork()
    if server == 0:
        prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
        serve()
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: kill_descendants())
    while True:
        try:
            pid, _ = os.wait()
        except ChildProcessError:
            os._exit(0)
        if pid == server:
            kill_descendants()


def kill_descendants() -> None:
    """Orphans become our children, so killing children until there are none reaches everybody."""
    while True:
        pids = _children()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as stream:
        return [int(pid) for pid in stream.read().split()]
