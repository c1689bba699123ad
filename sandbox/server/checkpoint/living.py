"""Processes and open files of a sandbox between two turns, none of which an archive can hold."""

from __future__ import annotations

import os

from sandbox.server.processes import Proc

FIRST_OWN = 3  # descriptors below it are the standard ones


class Living:
    """The processes below `roots`, and the files that they hold open to write."""

    def __init__(self, proc: Proc, roots: tuple[int, ...], places: tuple[str, ...]) -> None:
        self._proc, self._roots = proc, roots
        self._places = tuple(place + "/" for place in places)

    def descriptors(self, pid: int | None) -> dict[int, str]:
        """Descriptors of a process of ours, beside the standard ones."""
        return _own(self._proc.open_files(pid)) if pid is not None else {}

    def unkept(self, shell: int | None, kernel: int | None, own: dict[int, str], ours: str, stands: str) -> list[str]:
        """A line for each process and file but `ours`. `own`: the shell's descriptors at the mark; `stands`: its name
        for its directory.
        """
        lost = []
        for found in self._proc.below(self._roots):
            if found.dead:
                continue
            name = f"{found.name} ({found.pid})"
            files = self._proc.open_files(found.pid)
            if found.pid == shell:
                name = "the shell"
                others = [number for number in _own(files) if number not in own]
                lost += [
                    f"descriptor {number} of the shell: {files[number]}"
                    for number in others
                    if not self._flags(found.pid, number) & os.O_CLOEXEC  # bash's own, while it redirects
                ]
                if not self._leads(stands, found.pid):
                    lost.append(f"the shell's directory: {stands} does not lead there, or cannot be entered")
            elif found.pid == kernel:
                name = "the kernel"
            else:
                lost.append(f"process {name}")
            lost += [
                f"{link}, which {name} has open to write" for link in self._written(found.pid, files) if link != ours
            ]
        return lost

    def _leads(self, path: str, pid: int) -> bool:
        """True if whoever goes to this path comes to where the process is: not once that was moved or removed."""
        try:
            here, there = self._proc.directory(pid), os.stat(path)
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) and os.access(path, os.X_OK)

    def _written(self, pid: int, files: dict[int, str]) -> list[str]:
        within = {number: link for number, link in files.items() if link.startswith(self._places)}
        return [link for number, link in within.items() if self._flags(pid, number) & os.O_ACCMODE]

    def _flags(self, pid: int, number: int) -> int:
        """As the descriptor was opened. One that is gone has none."""
        try:
            lines = self._proc.read(pid, f"fdinfo/{number}").splitlines()
        except OSError:
            return os.O_CLOEXEC
        return next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_CLOEXEC)


def _own(files: dict[int, str]) -> dict[int, str]:
    return {number: link for number, link in files.items() if number >= FIRST_OWN}
