"""The processes that run in the sandbox, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
READ_BYTES = 1 << 16
ADDRESSES_OF_A_BYTE = 512  # of a page table: 8 bytes for each page of 4 KiB
FEW_BYTES = 1 << 20  # of page tables


class Process(NamedTuple):
    """One line of the table. `memory_bytes` counts what is shared with others in full."""

    pid: int
    parent: int
    group: int
    name: str
    dead: bool  # a zombie: it holds its number, and nothing else
    threads: int
    memory_bytes: int  # without page tables
    space_bytes: int  # of addresses
    born: int  # in ticks since the node was started: a number may be given twice, not both
    cpu_ticks: int = 0  # that it has used


class Proc:
    """The /proc of the time when this was made: a server that enters a sandbox from outside keeps seeing its own."""

    def __init__(self) -> None:
        self._root = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def pids(self) -> list[int]:
        here = self.directory_of_all()
        try:
            return [int(name) for name in os.listdir(here) if name.isdigit()]
        finally:
            os.close(here)

    def read(self, pid: int, name: str) -> str:
        """Raises `OSError`: the process may be gone, or hide itself."""
        return self._text(f"{pid}/{name}")

    def last_pid(self) -> str:
        """The number given last in this process's PID namespace; empty where nothing says so."""
        with contextlib.suppress(OSError, IndexError):
            return self._text("loadavg").split()[-1]
        return ""

    def directory_of_all(self) -> int:
        """A descriptor of its own."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)

    def _text(self, path: str) -> str:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root)
        try:
            return os.read(descriptor, READ_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)

    def memory(self, pid: int, address: int, size: int) -> bytes:
        """Raises `OSError`."""
        descriptor = os.open(f"{pid}/mem", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root)
        try:
            return os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)

    def link(self, pid: int, name: str) -> str:
        """Raises `OSError`."""
        return os.readlink(f"{pid}/{name}", dir_fd=self._root)

    def directory(self, pid: int) -> os.stat_result:
        """The directory that it is in. Raises `OSError`."""
        return os.stat(f"{pid}/cwd", dir_fd=self._root)

    def open_files(self, pid: int) -> dict[int, str]:
        """The descriptors of a process, and what each leads to. Empty for one that is gone, or hides itself."""
        found = {}
        with contextlib.suppress(OSError):
            here = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                for name in os.listdir(here):
                    with contextlib.suppress(OSError):  # closed meanwhile
                        found[int(name)] = os.readlink(name, dir_fd=here)
            finally:
                os.close(here)
        return found

    def process(self, pid: int) -> Process | None:
        try:
            return self._row(pid, self.read(pid, "stat"))
        except OSError:
            return None

    def _row(self, pid: int, text: str) -> Process:
        before, _, after = text.rpartition(")")
        fields = after.split()
        return Process(
            pid=pid, parent=int(fields[1]), group=int(fields[2]), name=before.partition("(")[2], dead=fields[0] in "ZX",
            threads=int(fields[17]), memory_bytes=int(fields[21]) * PAGE_BYTES, space_bytes=int(fields[20]),
            born=int(fields[19]), cpu_ticks=int(fields[11]) + int(fields[12]),
        )  # fmt: skip

    def below(self, roots: tuple[int, ...]) -> list[Process]:
        """All descendants of the roots, this process left out. Orphans come to a root, so nothing escapes."""
        return list(self.descend(roots))

    def descend(self, roots: tuple[int, ...], spared: Callable[[], set[int]] = set) -> Iterator[Process]:
        """The same, each as soon as it is read and the newest first: one that starts itself again and ends is gone in
        a moment. The spared are left out, with what is below them; they are asked for behind the list of numbers.
        """
        table: dict[int, Process] = {}
        newest_first = self._newest_first()
        inside = {**dict.fromkeys(roots, True), **dict.fromkeys(spared(), False)}
        apart = {*roots, os.getpid()}
        for pid in newest_first:
            if pid not in apart and self._belongs(pid, inside, table):
                yield table[pid]

    def _newest_first(self) -> list[int]:
        """Numbers, the one given last first: behind the largest one they are given from the start again."""
        pids, last = self.pids(), self.last_pid()
        newest = int(last) if last else 0
        return sorted(pids, key=lambda pid: (pid > newest, -pid))

    def _belongs(self, pid: int, inside: dict[int, bool], table: dict[int, Process]) -> bool:
        """Looks upwards until something is known. A parent that has ended has left its children to another one."""
        while True:
            path, at = [], pid
            while at not in inside:
                found = table.get(at) or self.process(at)
                if found is None:
                    break
                table[at] = found
                path.append(at)
                at = found.parent
            if not path and at not in inside:
                return False  # it has ended
            if at in inside or self._is_parent(at, path[-1]):
                answer = inside.get(at, False)  # False: a parent that is not to be seen from here
                inside.update(dict.fromkeys(path, answer))
                return answer and pid in table
            for ended in path:
                del table[ended]

    def _is_parent(self, parent: int, pid: int) -> bool:
        found = self.process(pid)
        return found is not None and found.parent == parent

    def starved_seconds(self, pid: int) -> float:
        """Seconds for which one thread of a process was ready and waited for a CPU: the thread that waited longest. A
        program may wait in its first thread for another. 0 where the kernel does not count.
        """
        return max((self._waited_seconds(pid, thread) for thread in self._threads(pid)), default=0.0)

    def _threads(self, pid: int) -> list[str]:
        try:
            here = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        except OSError:
            return []
        try:
            return os.listdir(here)
        finally:
            os.close(here)

    def _waited_seconds(self, pid: int, thread: str) -> float:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(self.read(pid, f"task/{thread}/schedstat").split()[1]) / 1e9
        return 0.0

    def cpu_seconds(self, pid: int) -> float:
        """CPU time that a process has used, with that of its children that ended and that it waited for."""
        return self._ticks(pid, 11, 15) / TICKS

    def reaped_seconds(self, pid: int) -> float:
        """CPU time of those children of a process that ended and that it waited for."""
        return self._ticks(pid, 13, 15) / TICKS

    def _ticks(self, pid: int, first: int, end: int) -> int:
        with contextlib.suppress(OSError, ValueError):
            return sum(map(int, self.read(pid, "stat").rpartition(")")[2].split()[first:end]))
        return 0

    def table_bytes(self, process: Process) -> int:
        """Its page tables: a 512th of its addresses at most, so that few processes need be asked about."""
        if process.space_bytes // ADDRESSES_OF_A_BYTE < FEW_BYTES:
            return 0
        with contextlib.suppress(OSError, ValueError):
            for line in self.read(process.pid, "status").splitlines():
                if line.startswith("VmPTE:"):
                    return int(line.split()[1]) * 1024
        return 0

    def share_bytes(self, process: Process) -> int:
        """Its memory with each shared page divided among those that share it; slower to learn than `memory_bytes`. 0
        for one that has ended since it was read.
        """
        with contextlib.suppress(OSError, ValueError):
            for line in self.read(process.pid, "smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        now = self.process(process.pid)
        return now.memory_bytes if now is not None and now.born == process.born else 0
