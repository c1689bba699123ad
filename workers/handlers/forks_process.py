"""The process behind `workers.handlers.forks`: one fork a request, gone when its standard input closes.

    PYTHONHASHSEED=0 python -m workers.handlers.forks_process DESCRIPTOR MODULE CPU_S MEMORY_BYTES [USER GROUP]

The descriptor is that of a listening socket; with a user and a group, which it becomes where it is root, it has no
other sockets. It is single-threaded, so that forking is safe, and it never reads a request itself. A request is a line:
the wall time that it may take, and what is asked. Once that is over it ends the fork and says how long the fork waited
for a CPU.
"""

import contextlib
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sandbox.server.libc import CHILD_SUBREAPER, PARENT_DEATH_SIGNAL, prctl
from sandbox.server.sealing.seal import Seal

MAX_LINE_BYTES = 1 << 24
LATE = b"\0late "  # no answer begins so


class Fork(NamedTuple):
    """A living fork, and what it answers on."""

    pid: int
    connection: socket.socket
    told: int  # it says there for how long it may run, before it reads what is asked


def serve_one(
    connection: socket.socket, telling: int, reply_to: Callable[[bytes], bytes], cpu_s: int, memory_bytes: int
) -> None:
    """In the fork: limits, then one request."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with connection, connection.makefile("rb") as lines:
        connection.sendall(b"ready\n")
        wall_s, _, asked = lines.readline(MAX_LINE_BYTES).partition(b" ")
        os.write(telling, b"%.3f" % float(wall_s))
        os.close(telling)
        connection.sendall(reply_to(asked) + b"\n")


class Parent:
    """Keeps the time of its forks, and leaves nothing of one behind: an alarm of its own a fork could switch off."""

    def __init__(self, cpu_s: int) -> None:
        self._cpu_s = cpu_s
        self._ready = selectors.DefaultSelector()
        self._forks: dict[int, Fork] = {}
        self._starting: set[int] = set()
        self._ends: dict[int, float] = {}  # when, of forks that have begun
        self._before = set(_children(os.getpid()))  # of the module that was loaded

    def serve(self, listener: socket.socket, serve_fork: Callable[[socket.socket, int], None]) -> None:
        """Accepts until standard input closes."""
        self._ready.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, serve_fork))
        self._ready.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in self._ready.select(self._pause_s()):
                if key.data is None:
                    return
                key.data()
            for pid in [pid for pid, end in self._ends.items() if end <= time.monotonic()]:
                self._end(self._forks[pid])

    def _pause_s(self) -> float | None:
        return max(0.0, min(self._ends.values()) - time.monotonic()) if self._ends else None

    def _accept(self, listener: socket.socket, serve_fork: Callable[[socket.socket, int], None]) -> None:
        connection, _ = listener.accept()
        told, telling = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._ready.close()
                listener.close()  # what is asked next is not for it
                os.close(told)
                for fork in self._forks.values():
                    fork.connection.close()  # what other forks answer on
                serve_fork(connection, telling)
            finally:
                os._exit(0)
        os.close(telling)
        fork = self._forks[pid] = Fork(pid, connection, told)
        self._starting.add(pid)
        exited = os.pidfd_open(pid)
        self._ready.register(told, selectors.EVENT_READ, lambda: self._begin(fork))
        self._ready.register(exited, selectors.EVENT_READ, lambda: self._bury(fork, exited))

    def _begin(self, fork: Fork) -> None:
        if fork.pid not in self._starting:  # it has ended since both were seen
            return
        self._starting.remove(fork.pid)
        self._ready.unregister(fork.told)
        said = os.read(fork.told, 16)
        os.close(fork.told)
        if said:
            self._ends[fork.pid] = time.monotonic() + float(said)

    def _end(self, fork: Fork) -> None:
        """Ends a late fork. The line about it is read only where it gave no answer."""
        del self._ends[fork.pid]
        pids = _tree(fork.pid)
        waited_s = 0.0 if sum(map(_cpu_s, pids)) > self._cpu_s else _waited_s(fork.pid)
        with contextlib.suppress(OSError):
            fork.connection.send(LATE + b"%.3f\n" % waited_s, socket.MSG_DONTWAIT)
        os.kill(fork.pid, signal.SIGKILL)

    def _bury(self, fork: Fork, exited: int) -> None:
        """Takes away a fork that has ended, and what it has left: orphans come to this process."""
        self._ready.unregister(exited)
        os.close(exited)
        self._begin(fork)
        self._ends.pop(fork.pid, None)
        self._forks.pop(fork.pid)
        os.waitpid(fork.pid, 0)
        while left := set(_children(os.getpid())) - self._before - set(self._forks):
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            for pid in left:
                os.waitpid(pid, 0)
        fork.connection.close()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError, ValueError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def _tree(pid: int) -> list[int]:
    return [pid, *(each for child in _children(pid) for each in _tree(child))]


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _waited_s(pid: int) -> float:
    """For how long it was ready and had no CPU."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _confine(user: int, group: int) -> None:
    """No right of root's, and no socket but those it has: one of the host's may lie where its modules do."""
    with contextlib.suppress(PermissionError):  # of a root in a container, who may be no one else
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)  # which the kernel forgets with the user
    Seal(sockets=False).set()


def main() -> None:
    """Loads the module, then serves."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    cpu_s, memory_bytes = map(int, sys.argv[3:5])
    module = importlib.import_module(sys.argv[2])
    module.load()  # before any fork
    if sys.argv[5:]:
        _confine(*map(int, sys.argv[5:]))
    prctl(CHILD_SUBREAPER, 1)

    def serve_fork(connection: socket.socket, telling: int) -> None:
        serve_one(connection, telling, module.reply_to, cpu_s, memory_bytes)

    Parent(cpu_s).serve(listener, serve_fork)


if __name__ == "__main__":
    main()
