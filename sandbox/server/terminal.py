"""The shell's pseudo-terminal, and whether a program waits for input there."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios

from sandbox.server.processes import Proc
from sandbox.server.shell_input import offer

CONTROL_KEYS = {"C-c": b"\x03", "C-d": b"\x04", "C-z": b"\x1a"}
# System calls that block on a descriptor (its number is the first argument), on descriptors below a number, on a list
# of descriptors in memory, and on a set of descriptors in the kernel.
READS = {"x86_64": ("0",), "aarch64": ("63",)}
SELECTS = {"x86_64": ("23", "270"), "aarch64": ("72",)}
POLLS = {"x86_64": ("7", "271"), "aarch64": ("73",)}
EPOLLS = {"x86_64": ("232", "281", "441"), "aarch64": ("22", "441")}
TERMINAL_NUMBER = 0x80045430  # ioctl TIOCGPTN
# Flags of input, of output, and of the line discipline.
SETTLED = (termios.ICRNL | getattr(termios, "IUTF8", 0), 0, termios.ICANON | termios.ISIG | termios.IEXTEN)
ROWS = 50
COLUMNS = 120
POLLED = struct.Struct("ihh")
MOST_POLLED = 64


class Terminal:
    """Both ends of it: with the slave's open here, the terminal cannot hang up. The master's does not block."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self.master, self.slave = os.openpty()
        # `os.ttyname` looks for the name in /proc/self, which a server from outside does not see.
        number = fcntl.ioctl(self.master, TERMINAL_NUMBER, bytes(4))
        self.name = "/dev/pts/{}".format(*struct.unpack("i", number))
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.set_blocking(self.master, False)
        self._fed = False  # something was typed since it was settled
        self.settle()

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)

    def settle(self) -> None:
        """Line mode with signals, no echo, no translation, for a program may have died in raw mode; nothing unread.

        A read blocks, whatever a program has made of the descriptor that it has in common with others.
        """
        os.set_blocking(self.slave, True)
        modes = termios.tcgetattr(self.slave)
        settled = list(modes)
        settled[0], settled[1], settled[3] = SETTLED
        if modes != settled:
            termios.tcsetattr(self.slave, termios.TCSANOW, settled)
        if self._fed:
            self._fed = False
            termios.tcflush(self.slave, termios.TCIFLUSH)
            termios.tcflush(self.master, termios.TCOFLUSH)  # what is still on its way to the slave

    def feed(self, typed: bytes) -> bytes:
        """Takes what it has room for, as typed; the rest comes back."""
        self._fed = True
        return offer(self.master, typed)

    def edits_lines(self) -> bool:
        """True if the kernel gathers lines for programs, rather than giving them each key."""
        return bool(termios.tcgetattr(self.slave)[3] & termios.ICANON)

    def is_read(self) -> bool:
        """True when a process of the terminal's foreground group is blocked reading from it, and has read all there is.

        On a busy machine a program may stay blocked for a while with input that it was not yet woken for.
        """
        if select.select([self.slave], [], [], 0)[0]:
            return False
        try:
            group = os.tcgetpgrp(self.master)
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
        """True if this system call with these arguments ends when somebody types."""
        machine = os.uname().machine
        if call in READS.get(machine, ()):
            return self._is_ours(pid, first)
        if call in SELECTS.get(machine, ()):
            return first == 1 and self._is_ours(pid, 0)
        if call in POLLS.get(machine, ()):
            return self._polls(pid, first, second)
        return call in EPOLLS.get(machine, ()) and self._waits(pid, first)

    def _is_ours(self, pid: int, descriptor: int) -> bool:
        return self._proc.link(pid, f"fd/{descriptor}") in (self.name, "/dev/tty")

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
