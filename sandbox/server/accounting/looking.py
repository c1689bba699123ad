"""Files of /proc that the watchdog keeps open between its looks: to open them takes half of the time."""

from __future__ import annotations

import os

from sandbox.server.processes import READ_BYTES, Proc, Process

MOST_KEPT = 64  # more processes than that are read as any others


class KeptFile:
    """One file of /proc, read from its start each time. An empty text: it is not there."""

    def __init__(self, path: str, directory: int | None = None) -> None:
        """Raises `OSError`."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)

    def read(self) -> str:
        """Raises `OSError`."""
        return os.pread(self._descriptor, READ_BYTES, 0).decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self._descriptor)


class LookingProc(Proc):
    """`Proc` for one thread that asks for the same processes again and again."""

    def __init__(self, proc: Proc) -> None:
        self._root = proc.directory_of_all()
        self._kept: dict[int, KeptFile] = {}
        self._asked: set[int] = set()

    def below(self, roots: tuple[int, ...]) -> list[Process]:
        found = super().below(roots)
        for pid in self._kept.keys() - self._asked:
            self._kept.pop(pid).close()
        self._asked = set()
        return found

    def pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self._root) if name.isdigit()]

    def process(self, pid: int) -> Process | None:
        self._asked.add(pid)
        kept = self._kept.get(pid)
        if kept is not None:
            try:
                return self._row(pid, kept.read())
            except OSError:  # it has ended, and its number may be another one's by now
                self._kept.pop(pid).close()
        if len(self._kept) >= MOST_KEPT:
            return super().process(pid)
        try:
            kept = self._kept[pid] = KeptFile(f"{pid}/stat", self._root)
            return self._row(pid, kept.read())
        except OSError:
            return None

    def _newest_first(self) -> list[int]:
        """In any order: nobody is ended by a look alone."""
        return self.pids()
