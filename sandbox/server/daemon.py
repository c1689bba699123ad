"""The server's process and the sandbox that ends with it: below a first process, or outside, where there is no Python.

--front: the first process adopts orphans, and when it ends, everything below it has ended. In an Apptainer sandbox it
is process 1 of a PID namespace; in a local one it does itself what the kernel does there.

--enter LISTENER LIFELINE PID [UID GID]: PID is a process of the sandbox's own namespaces, which lives for as long as
somebody has LIFELINE open. The server's own number goes to standard output, once it has entered.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

from sandbox.server.children import Sacrifice
from sandbox.server.entry import EnteredSandbox
from sandbox.server.libc import CHILD_SUBREAPER, DUMPABLE, PARENT_DEATH_SIGNAL, hide_from_tracers, prctl
from sandbox.server.processes import Proc
from sandbox.server.sealing.seal import join_own_keyring


class Outside:
    """Resources that a server that came from outside has taken with it."""

    def __init__(self, pid: int, *, sealed: bool) -> None:
        self.proc = Proc()
        self.sacrifice = Sacrifice()
        self._holder = os.pidfd_open(pid)
        self.entry = EnteredSandbox(pid, sealed=sealed)
        self.roots = (pid, os.getpid())

    def end_with_it(self) -> None:
        """Its process 1 is gone only when all that we have started there is reaped."""
        select.select([self._holder], [], [])
        os._exit(0)


def _take_orphans() -> None:
    """The sandbox's first process cannot end before all that the server has started there is reaped.

    When the server was killed, that would be left to the node's first process, which in many a container reaps nobody.
    """
    prctl(CHILD_SUBREAPER, 1)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the listing itself
            os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def become_user(user: list[int]) -> None:
    """Becomes the user and group `user`, unless there are none."""
    prctl(DUMPABLE, 1)  # what this imports could not be read any more after the next lines
    if user:
        os.setgroups([])
        os.setresgid(user[1], user[1], user[1])
        os.setresuid(user[0], user[0], user[0])
    prctl(DUMPABLE, 1)  # a change of user hides a process, also from itself


def enter(arguments: list[str], *, sealed: bool) -> Outside:
    """Returns in a process of its own, which nobody needs to wait for. Raises `OSError`."""
    pid, *user = (int(argument) for argument in arguments[1:])
    become_user(user)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        _take_orphans()
    if sealed:
        join_own_keyring()
    outside = Outside(pid, sealed=sealed)
    hide_from_tracers()
    os.write(1, b"%d" % os.getpid())
    return outside


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
