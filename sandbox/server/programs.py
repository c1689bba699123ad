"""Programs run to their end, outside the persistent shell."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from sandbox.server.acts import Asker
from sandbox.server.capture import Capture
from sandbox.server.children import Children, StartedChild, end_all
from sandbox.server.processes import Proc

GONE_S = 5.0  # at most, for the killed to be reaped: a call that the kernel does not break off holds a process
LOOK_AGAIN_S = 0.001
STILL_LOOKS = 20  # at most: without a PID namespace, others start processes all the time


class Alone:
    """A program that runs while nothing else is to run: what is new in the sandbox since this was made is its own.

    The shell, the kernel and other started programs are spared, with what is below them: nothing can move there.
    """

    def __init__(self, proc: Proc, children: Children, roots: tuple[int, ...]) -> None:
        self._proc, self._children, self._roots = proc, children, roots
        self._before = {(found.pid, found.born) for found in proc.below(roots)}
        self._cpu_before_s = self._reaped_s()

    def pids(self, own: int | None = None) -> set[int]:
        """Processes of the program, wherever they have fled. `own`: the program itself, while it lives."""
        return set(self._each(own))

    def _each(self, own: int | None = None) -> Iterator[int]:
        """The same, each as soon as it is seen. Zombies are among them: a thread may outlive its process's first.

        None is an answer only if nothing was started during the look: a program that starts itself again and ends
        could be between two numbers.
        """
        for _ in range(STILL_LOOKS):
            last, any_found = self._proc.last_pid(), False
            for found in self._proc.descend(self._roots, lambda: self._children.pids() - {own}):
                if (found.pid, found.born) not in self._before:
                    any_found = True
                    yield found.pid
            if any_found or self._proc.last_pid() == last:
                return

    def end(self) -> None:
        """Nothing of the program lives on return."""
        deadline = time.monotonic() + GONE_S
        while end_all(self._each) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_S)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all that was new and has ended. An orphan's is its adopter's to count."""
        return self._reaped_s() - self._cpu_before_s

    def _reaped_s(self) -> float:
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        adopters = set(self._roots) - {os.getpid()}
        return own.ru_utime + own.ru_stime + sum(map(self._proc.reaped_seconds, adopters))


class Programs:
    """Runs programs side by side; each is over when its process exits, whatever its children still hold open."""

    def __init__(self, settings: dict[str, Any], children: Children, proc: Proc, roots: tuple[int, ...]) -> None:
        self._settings = settings
        self._children = children
        self._proc = proc
        self._roots = roots
        self._alone = threading.Lock()
        self._lock = threading.Lock()
        self._running: set[StartedChild] = set()

    def interrupt(self) -> None:
        with self._lock:
            for child in self._running:
                child.signal_group(signal.SIGKILL)

    def runs(self) -> bool:
        with self._lock:
            return bool(self._running)

    def run(self, request: dict[str, Any], stdin: bytes, asker: Asker) -> tuple[dict[str, Any], bytes]:
        """With `alone`, nothing that the program started is left on return, and all of its CPU time is counted."""
        if not request.get("alone"):
            return self._run(request, stdin, asker, self._below)
        with self._alone:
            alone = Alone(self._proc, self._children, self._roots)
            try:
                header, output = self._run(request, stdin, asker, alone.pids)
            finally:
                alone.end()
            return dict(header, cpu_seconds=alone.cpu_seconds), output

    def _run(
        self, request: dict[str, Any], stdin: bytes, asker: Asker, pids: Callable[[int], set[int]]
    ) -> tuple[dict[str, Any], bytes]:
        asker.begin()
        began = time.monotonic()
        settings = self._settings
        limit = settings["output_bytes"] if request["output_bytes"] is None else request["output_bytes"]
        ours, theirs = _pipes()
        try:
            child = self._children.start(
                request["argv"], (theirs[0], theirs[1], theirs[2]),
                env=settings["env"], cwd=request["cwd"] or settings["cwd"], limits=settings["limits"],
            )  # fmt: skip
        except OSError as error:
            for fd in ours:
                os.close(fd)
            text = ("{}: {}\n".format(request["argv"][0], error.strerror)).encode()
            code = 127 if isinstance(error, FileNotFoundError) else 126
            return {"exit_code": code, "stdout_bytes": 0, "timed_out": False, "dropped_bytes": 0}, text
        finally:
            for fd in theirs:
                os.close(fd)
        with self._lock:
            self._running.add(child)
        try:
            run = _Run(child, ours, stdin, limit, lambda pid: self._clocks(pids(pid)))
            timed_out = run.follow(began + request["timeout_s"], asker.hangup)
        except BaseException:
            child.signal_group(signal.SIGKILL)
            raise
        finally:
            with self._lock:
                self._running.discard(child)
            code = self._children.forget(child)
        stdout, dropped = run.stdout.result()
        stderr, dropped_too = run.stderr.result()
        header = {
            "exit_code": code,
            "stdout_bytes": len(stdout),
            "timed_out": timed_out,
            "dropped_bytes": dropped + dropped_too,
            "seconds": time.monotonic() - began,
            "cpu_seconds": max(child.cpu_seconds, run.cpu_seconds),
            "starved_seconds": run.starved_seconds,
        }
        return header, stdout + stderr

    def _below(self, pid: int) -> set[int]:
        return {pid, *(process.pid for process in self._proc.below((pid,)))}

    def _clocks(self, pids: set[int]) -> tuple[float, float]:
        """CPU time of all of a program, and how long the thread that waited longest had no CPU."""
        return sum(map(self._proc.cpu_seconds, pids)), max(map(self._proc.starved_seconds, pids), default=0.0)


def _pipes() -> tuple[list[int], list[int]]:
    """Our ends and the program's ends of its standard input, output and error."""
    ours: list[int] = []
    theirs: list[int] = []
    for index in range(3):
        reader, writer = os.pipe()
        ours.append(writer if index == 0 else reader)
        theirs.append(reader if index == 0 else writer)
    return ours, theirs


class _Run:
    """One program's pipes."""

    def __init__(
        self,
        child: StartedChild,
        pipes: list[int],
        stdin: bytes,
        limit: int,
        clocks: Callable[[int], tuple[float, float]],
    ) -> None:
        self._child = child
        self._clocks = clocks
        self.cpu_seconds = self.starved_seconds = 0.0  # when it timed out
        self._stdin, self._out, self._err = pipes
        self._input = memoryview(stdin)
        self.stdout, self.stderr = Capture(limit), Capture(limit)
        self._captures = {self._out: self.stdout, self._err: self.stderr}
        for fd in pipes:
            os.set_blocking(fd, False)

    def follow(self, deadline: float, hangup: int) -> bool:
        """True when the deadline ended it."""
        timed_out = killed = False
        poll = select.poll()
        for fd in (self._out, self._err, self._child.exit_fd, hangup):
            poll.register(fd, select.POLLIN)
        if self._input:
            poll.register(self._stdin, select.POLLOUT)
        else:
            os.close(self._stdin)
            self._stdin = -1
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000) + 1
            if left_ms <= 0 and not killed:
                timed_out = killed = True
                self.cpu_seconds, self.starved_seconds = self._clocks(self._child.pid)
                self._child.signal_group(signal.SIGKILL)
            ready = {fd for fd, _ in poll.poll(1000 if killed else max(0, left_ms))}
            if hangup in ready and not killed:
                killed = True
                poll.unregister(hangup)
                self._child.signal_group(signal.SIGKILL)
            if self._stdin in ready:
                self._feed(poll)
            for fd in ready & set(self._captures):
                if not self._take(fd):
                    poll.unregister(fd)
            if self._child.exit_fd in ready:
                self._finish()
                return timed_out

    def _feed(self, poll: select.poll) -> None:
        try:
            self._input = self._input[os.write(self._stdin, self._input[:65536]) :]
        except BlockingIOError:
            return
        except OSError:
            self._input = memoryview(b"")  # the program does not read it
        if not self._input:
            poll.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _take(self, fd: int) -> bool:
        """One chunk; false at the end of the stream."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        self._captures[fd].add(data)
        return bool(data)

    def _finish(self) -> None:
        """Takes what is in the pipes, written before the exit; what background children write later is theirs."""
        for fd in self._captures:
            with contextlib.suppress(OSError):
                for _ in range(64):
                    data = os.read(fd, 65536)
                    if not data:
                        break
                    self._captures[fd].add(data)
            os.close(fd)
        if self._stdin >= 0:
            os.close(self._stdin)
