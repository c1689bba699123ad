"""Whether a program waits for somebody to type."""

from __future__ import annotations

import os

CONTROL_KEYS = {"C-c": b"\x03", "C-d": b"\x04", "C-z": b"\x1a"}
# System calls that block on a descriptor (its number is the first argument), and those that wait for
# descriptors below a number, by which line editors wait for descriptor 0.
READS = {"x86_64": ("0",), "aarch64": ("63",)}
SELECTS = {"x86_64": ("23", "270"), "aarch64": ("72",)}


def reads_terminal(master: int, tty: str) -> bool:
    """True when a process of the terminal's foreground group is blocked reading from it."""
    try:
        group = os.tcgetpgrp(master)
        members = [entry for entry in os.listdir("/proc") if entry.isdigit() and _group(entry) == group]
    except OSError:
        return False
    return any(_blocked(pid, tty) for pid in members)


def _group(pid: str) -> int:
    try:
        return os.getpgid(int(pid))
    except OSError:
        return -1


def _blocked(pid: str, tty: str) -> bool:
    machine = os.uname().machine
    try:
        with open("/proc/" + pid + "/syscall") as stream:
            words = stream.read().split()
        if len(words) < 2:
            return False
        if words[0] in READS.get(machine, ()):
            return os.readlink("/proc/" + pid + "/fd/" + str(int(words[1], 16))) in (tty, "/dev/tty")
        if words[0] in SELECTS.get(machine, ()):
            return words[1] == "0x1" and os.readlink("/proc/" + pid + "/fd/0") in (tty, "/dev/tty")
    except OSError:
        return False
    return False
