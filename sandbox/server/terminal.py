"""Whether a program waits for somebody to type."""

from __future__ import annotations

import os
import struct

from sandbox.server.processes import Proc

CONTROL_KEYS = {"C-c": b"\x03", "C-d": b"\x04", "C-z": b"\x1a"}
# System calls that block on a descriptor (its number is the first argument), on descriptors below a number, on a list
# of descriptors in memory, and on a set of descriptors in the kernel.
READS = {"x86_64": ("0",), "aarch64": ("63",)}
SELECTS = {"x86_64": ("23", "270"), "aarch64": ("72",)}
POLLS = {"x86_64": ("7", "271"), "aarch64": ("73",)}
EPOLLS = {"x86_64": ("232", "281", "441"), "aarch64": ("22", "441")}
POLLED = struct.Struct("ihh")
MOST_POLLED = 64


class Terminal:
    """A terminal as the kernel names it, and who waits for it."""

    def __init__(self, proc: Proc, tty: str) -> None:
        self._proc = proc
        self._names = (tty, "/dev/tty")

    def is_read(self, master: int) -> bool:
        """True when a process of the terminal's foreground group is blocked reading from it."""
        try:
            group = os.tcgetpgrp(master)
            members = [pid for pid in self._proc.pids() if _group(pid) == group]
        except OSError:
            return False
        return any(self._blocked(pid) for pid in members)

    def _blocked(self, pid: int) -> bool:
        try:
            call, first, second = self._proc.read(pid, "syscall").split()[:3]
            return self._awaits(pid, call, int(first, 16), int(second, 16))
        except (OSError, ValueError):
            return False

    def _awaits(self, pid: int, call: str, first: int, second: int) -> bool:
        """Whether this system call with these arguments ends when somebody types."""
        machine = os.uname().machine
        if call in READS.get(machine, ()):
            return self._is_ours(pid, first)
        if call in SELECTS.get(machine, ()):
            return first == 1 and self._is_ours(pid, 0)
        if call in POLLS.get(machine, ()):
            return self._polls(pid, first, second)
        return call in EPOLLS.get(machine, ()) and self._waits(pid, first)

    def _is_ours(self, pid: int, descriptor: int) -> bool:
        return self._proc.link(pid, f"fd/{descriptor}") in self._names

    def _polls(self, pid: int, address: int, count: int) -> bool:
        data = self._proc.memory(pid, address, min(count, MOST_POLLED) * POLLED.size)
        wanted = [fd for fd, events, _ in POLLED.iter_unpack(data) if fd >= 0 and events & 1]
        return any(self._is_ours(pid, fd) for fd in wanted)

    def _waits(self, pid: int, descriptor: int) -> bool:
        lines = self._proc.read(pid, f"fdinfo/{descriptor}").splitlines()
        words = [line.split() for line in lines if line.startswith("tfd:")]
        return any(int(word[3], 16) & 1 and self._is_ours(pid, int(word[1])) for word in words)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1
