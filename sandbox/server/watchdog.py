"""Limits on a sandbox as a whole, for which the kernel has no resource limit.

It looks at what runs, more often the closer a limit is, and not at all while nothing runs: so these limits are soft,
and what grows fast can pass one for a moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

from sandbox.server.accounting.looking import LookingProc
from sandbox.server.accounting.sockets import SocketBuffers
from sandbox.server.children import Children, end_all, send_signal
from sandbox.server.processes import Proc, Process

FASTEST_S = 0.02
SLOWEST_S = 0.5
REST_S = 0.1  # where nothing has had a CPU since the look before, and half of each limit is free
FEW_SOCKETS = 8  # an eighth of the memory limit is what sockets may have that are too few to be asked for
GROWTH_BYTES_S = 2 << 30  # how fast a sandbox is thought to grow on one CPU
FULL_S = 2.0  # since there was no room for another process: it is no busy moment any more
FULL_SHARE = 0.5  # of the limit: with fewer processes there is room, for those not seen from here are not as many
INODE_BYTES = 1024
COUNT_SHARE = 0.05  # of the time may go into counting files one by one
OWNER_ENTERS = 0o500
MOST_NOTICES = 20


class Notices:
    """Lines for the next answer of a tool: which limit was broken, and what was done about it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def post(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            del self._lines[:-MOST_NOTICES]

    def take(self) -> bytes:
        """The lines, each in brackets, for the end of an output."""
        if not self._lines:
            return b""
        with self._lock:
            lines, self._lines = self._lines, []
        return "".join(f"\n[{line}]\n" for line in lines).encode()


class CountedFiles:
    """Growth of places in file systems that others use, too: all files are looked at, and not too often."""

    def __init__(self, places: list[str]) -> None:
        self._places = places
        self._first: int | None = None
        self.known = 0  # bytes of growth at the last count
        self._next = 0.0

    def growth(self) -> int:
        """Bytes since the first call."""
        began = time.monotonic()
        if self._places and began >= self._next:
            now = sum(map(self._below, self._places))
            self._first = now if self._first is None else self._first
            self.known = max(0, now - self._first)
            ended = time.monotonic()
            self._next = ended + (ended - began) / COUNT_SHARE
        return self.known

    def _below(self, place: str) -> int:
        """Nothing is hidden below a directory that its owner has shut: it is open while what it holds is looked at."""
        used = 0
        waiting: list[tuple[str, int | None]] = [(place, None)]  # to look at, or to shut again as it was
        try:
            while waiting:
                directory, was = waiting.pop()
                with contextlib.suppress(OSError):
                    if was is not None:
                        os.chmod(directory, was)
                        continue
                    mode = stat.S_IMODE(os.lstat(directory).st_mode)
                    if mode & OWNER_ENTERS != OWNER_ENTERS:
                        os.chmod(directory, mode | OWNER_ENTERS)
                        waiting.append((directory, mode))
                    with os.scandir(directory) as listing:
                        for entry in listing:
                            with contextlib.suppress(OSError):
                                found = entry.stat(follow_symlinks=False)
                                below = stat.S_ISDIR(found.st_mode)
                                used += found.st_blocks * 512 // (1 if below else found.st_nlink) + INODE_BYTES
                                waiting += [(entry.path, None)] if below else []
        finally:
            for directory, was in reversed(waiting):
                if was is not None:
                    with contextlib.suppress(OSError):
                        os.chmod(directory, was)
        return used


class Watchdog:
    """Watches the processes below `roots`. `tools` gives those that the server itself keeps: shell and kernel."""

    def __init__(
        self,
        settings: dict[str, Any],
        proc: Proc,
        children: Children,
        roots: tuple[int, ...],
        notices: Notices,
        tools: Callable[[], set[int]],
        interrupt: Callable[[], object],
        sockets: SocketBuffers | None = None,
    ) -> None:
        """`sockets`: those of the sandbox, where it has a network of its own."""
        self._limits = limits = settings["limits"]
        self._memory_bytes: int = limits["memory_bytes"]
        self._processes: int | None = limits.get("processes")
        self._disk_bytes: int = limits["disk_bytes"]
        self._scratch = [place for place in settings["scratch"] if os.path.isdir(place)]
        counted = [place for place in settings.get("counted", ()) if os.path.isdir(place)]
        systems = {os.stat(place).st_dev: place for place in self._scratch}
        # Opened: what runs inside can move a directory, or shut the one above it.
        self._systems = [os.open(place, os.O_PATH | os.O_CLOEXEC) for place in systems.values()]
        self._where = [*self._scratch, *counted]
        self._counted = CountedFiles(counted)
        self.sealed_bytes = 0  # that lie in layers below those which can be written to
        self._proc, self._children, self._roots, self._notices = proc, children, roots, notices
        if sockets is not None:
            sockets.begin()
        self._looking = LookingProc(proc)  # for the thread that watches
        self._ticks = -1  # of CPU time that what lives had at the last look
        self._tools, self._interrupt, self._sockets = tools, interrupt, sockets
        self._growth_bytes_s = GROWTH_BYTES_S * max(2, len(os.sched_getaffinity(0)))
        self._end = time.monotonic() + limits["wall_s"]
        self._stir = threading.Event()
        self._calls = 0  # in progress
        self._lock = threading.Lock()
        self._killed: set[int] = set()  # pids of the dying
        self._full_since = 0.0
        self._disk_mark = self._disk_bytes  # more than this is news
        self._disk_stopped = False  # for it, and no tool was called since
        self._disk_look = threading.Lock()

    def __enter__(self) -> None:
        """Looks as long as a tool is called within this."""
        if self._disk_stopped:
            with self._disk_look:  # what the stopped still wrote is not on the account of who now removes it
                self._disk_mark, self._disk_stopped = max(self._disk_mark, self._files_bytes()), False
        with self._lock:
            self._calls += 1
        if not self._stir.is_set():
            self._stir.set()

    def __exit__(self, *_: object) -> None:
        """Tells what a call leaves behind with its answer: no look may stop the next one for it."""
        if self._disk_look.acquire(timeout=FASTEST_S):  # no answer waits while many files are counted
            try:
                used = self._scratch_bytes() + self._counted.known + self.sealed_bytes
                if used > self._disk_mark:
                    self._disk_mark = used
                    self._notices.post(f"{self._over(used)}. Remove files before you continue")
            finally:
                self._disk_look.release()
        with self._lock:
            self._calls -= 1

    def watch(self) -> None:
        """Returns when the sandbox's time is over."""
        with self._disk_look:  # before a tool adds anything: what is there now is the image's
            self._counted.growth()
        while self._stir.wait(max(0.0, self._end - time.monotonic())):
            self._stir.clear()
            busy, pause_s = True, self._pause(0)
            while busy and time.monotonic() < self._end:
                time.sleep(pause_s)  # a look has no event to wait for: memory grows without one
                with contextlib.suppress(OSError):  # it may be short of descriptors itself
                    busy, pause_s = self.look()

    def look(self) -> tuple[bool, float]:
        """Tells whether something runs, and the seconds after which to look again."""
        everything = self._looking.below(self._roots)
        self._killed &= {found.pid for found in everything}
        living = [found for found in everything if not found.dead and found.pid not in self._killed]
        used = self._check_memory(living)
        used = max(used, self._check_disk())
        self._check_processes(everything)
        idle = not self._calls and not {found.pid for found in living} - self._tools()
        before, self._ticks = self._ticks, sum(found.cpu_ticks for found in living)
        return not idle, self._pause(used, rests=before == self._ticks)

    def _pause(self, used: int, *, rests: bool = False) -> float:
        """Seconds in which no limit can be passed, but for the shortest pause: a longer one far from it and at rest."""
        limit = min(self._memory_bytes, self._disk_bytes)
        room = max(0.0, limit - used)
        shortest_s = REST_S if rests and room > limit / 2 else FASTEST_S
        return min(SLOWEST_S, max(shortest_s, room / self._growth_bytes_s))

    def _check_memory(self, living: list[Process]) -> int:
        """Kills the largest group, and the next ones until the rest keeps the limit.

        Nobody knows whose a socket is. So where it is they that take too much, one group is killed at a time, and the
        next one when that is gone and they still do.
        """
        few_bytes = self._memory_bytes // FEW_SOCKETS
        sockets = self._sockets.held_bytes(few_bytes) if self._sockets is not None else 0
        tables = {found.pid: self._proc.table_bytes(found) for found in living}
        used = sockets + sum(tables.values()) + sum(found.memory_bytes for found in living)
        if used <= self._memory_bytes:
            return used
        most = self._memory_bytes - sockets - sum(tables.values())
        shares = {pid: share + tables[pid] for pid, share in self._shares(living, most).items()}
        used = sockets + sum(shares.values())
        groups: dict[int, list[Process]] = {}
        for found in living:
            groups.setdefault(found.group, []).append(found)
        sizes = {group: sum(shares[found.pid] for found in members) for group, members in groups.items()}
        for group in sorted(sizes, key=lambda group: sizes[group], reverse=True):
            if used - (sockets if self._killed else 0) <= self._memory_bytes:
                break
            self._notices.post(
                f"over the memory limit: everything that runs takes {_mib(used)} of {_mib(self._memory_bytes)}"
                f"{f' ({_mib(sockets)} in sockets)' if sockets else ''}; killed "
                f"the largest group of processes: {_names(groups[group])}, which takes {_mib(sizes[group])}"
            )
            self._kill(groups[group])
            used -= sizes[group]
        return used

    def _shares(self, living: list[Process], most: int) -> dict[int, int]:
        """Bytes of each process; where all have more than `most`, the smaller of two readings. Where some fork or end
        during one, those read before them and those read behind them are each given the same pages.
        """
        shares = {found.pid: self._proc.share_bytes(found) for found in living}
        if sum(shares.values()) <= most:
            return shares
        return {found.pid: min(shares[found.pid], self._proc.share_bytes(found)) for found in living}

    def _check_disk(self) -> int:
        """Stops everything that runs when files take more than ever before and than the limit."""
        with self._disk_look:
            used = self._files_bytes()
            if used > self._disk_mark:
                self._disk_mark = used
                self._notices.post(f"{self._over(used)}; what ran was stopped. Remove files before you continue")
                self._stop()
                self._disk_stopped = True
            elif used <= self._disk_bytes:
                self._disk_mark = self._disk_bytes
            return used

    def _over(self, used: int) -> str:
        limit = _mib(self._disk_bytes)
        return f"over the disk limit: files in {', '.join(self._where)} take {_mib(used)} of {limit}"

    def _files_bytes(self) -> int:
        """Bytes in the writable places, of an image's what was added; an empty file is not free either."""
        return self._scratch_bytes() + self._counted.growth() + self.sealed_bytes

    def _scratch_bytes(self) -> int:
        used = 0
        for opened in self._systems:
            with contextlib.suppress(OSError):
                found = os.fstatvfs(opened)
                used += (found.f_blocks - found.f_bfree) * found.f_frsize
                used += (found.f_files - found.f_ffree) * INODE_BYTES
        return used

    def _check_processes(self, everything: list[Process]) -> None:
        """A sandbox in which nothing more can start is of no use to its agent."""
        count = sum(max(1, found.threads) for found in everything)
        if self._processes is None or count < FULL_SHARE * self._processes:
            self._full_since = 0.0
        elif not self._full_since:
            self._full_since = time.monotonic() if self._children.is_full(self._limits) else 0.0
        elif time.monotonic() - self._full_since >= FULL_S:
            self._full_since = 0.0
            if not self._children.is_full(self._limits):
                return
            self._notices.post(
                f"the limit of {self._processes} processes and threads was reached, so that nothing more could start; "
                "what ran was stopped"
            )
            self._stop()

    def _stop(self) -> None:
        """Ends all that runs but shell and kernel, which are interrupted."""
        self._interrupt()
        spared = self._tools() | self._killed
        self._killed |= end_all(
            lambda: {found.pid for found in self._proc.below(self._roots) if not found.dead} - spared
        )

    def _kill(self, group: list[Process]) -> None:
        for found in group:
            send_signal(found.pid, signal.SIGKILL)
        self._killed |= {found.pid for found in group}


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def _names(group: list[Process]) -> str:
    return ", ".join(f"{found.name} ({found.pid})" for found in group[:3]) + (", ..." if len(group) > 3 else "")
