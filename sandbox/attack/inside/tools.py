"""System calls by name, and the two ways in which an attack ends."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

from sandbox.server.sealing.calls import FORBIDDEN, JUDGED, MISSING, numbers

OTHERS = "ptrace 101 117, process_vm_readv 310 270, pidfd_open 434 434, getpid 39 172"
REFUSED = (errno.ENOSYS, errno.EPERM)
LIBC = ctypes.CDLL(None, use_errno=True)


class Contained(Exception):
    """The attack has met something other than an error of a system call."""


def number(name: str) -> int:
    """Raises `Contained` if this architecture has no such call."""
    for table in (MISSING, FORBIDDEN, JUDGED, OTHERS):
        known = numbers(table, os.uname().machine)
        if name in known:
            return known[name]
    raise Contained(f"no {name} on {os.uname().machine}")


def raw_call(number: int, *arguments: Any) -> int:
    """Raises `OSError`."""
    answer = int(LIBC.syscall(number, *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def system_call(name: str, *arguments: Any) -> int:
    """Raises `OSError`, or `Contained`."""
    return raw_call(number(name), *arguments)


def reaches(name: str, *arguments: Any) -> str:
    """Words for a call whose arguments the kernel looks at. Raises `OSError` if it refuses before that."""
    try:
        system_call(name, *arguments)
    except OSError as error:
        if error.errno in REFUSED:
            raise
        return f"{name} is open ({errno.errorcode[error.errno or 0]})"
    return f"{name} succeeds"
