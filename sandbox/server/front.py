"""The first process of a sandbox: orphans come to it, and when it ends, everything below it has ended.

In an Apptainer sandbox it is process 1 of a PID namespace; in a local one it does itself what the kernel does there.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def run_front(serve: Any, arguments: list[str]) -> None:
    """Runs the execution server as its child; SIGTERM, or the server's end, ends all."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = os.fork()
    if server == 0:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        serve(arguments)
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
