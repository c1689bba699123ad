"""Programs run to their end, outside the persistent shell."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

from sandbox.server.capture import Capture
from sandbox.server.children import Children, StartedChild
from sandbox.server.processes import Proc


class Programs:
    """Runs programs side by side; each is over when its process exits, whatever its children still hold open."""

    def __init__(self, settings: dict[str, Any], children: Children, proc: Proc) -> None:
        self._settings = settings
        self._children = children
        self._proc = proc
        self._lock = threading.Lock()
        self._running: set[StartedChild] = set()

    def interrupt(self) -> None:
        with self._lock:
            for child in self._running:
                child.signal_group(signal.SIGKILL)

    def run(self, request: dict[str, Any], stdin: bytes, hangup: int) -> tuple[dict[str, Any], bytes]:
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
            run = _Run(child, ours, stdin, limit, self._clocks)
            timed_out = run.follow(began + request["timeout_s"], hangup)
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

    def _clocks(self, pid: int) -> tuple[float, float]:
        """CPU time of a program and all that it started, and how long the thread that waited longest had no CPU."""
        pids = [pid, *(process.pid for process in self._proc.below((pid,)))]
        return sum(map(self._proc.cpu_seconds, pids)), max(map(self._proc.starved_seconds, pids))


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
