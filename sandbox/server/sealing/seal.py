"""The seal of a process: what it, and all that it starts, can never take off again.

A session keyring of its own, no new privileges, and the filter of system calls. The kernel asks for no right to set it.
"""

from __future__ import annotations

import contextlib
import os
import struct

from sandbox.server.libc import NO_NEW_PRIVILEGES, call, hide_from_tracers, prctl, syscall
from sandbox.server.sealing.calls import MISSING, numbers
from sandbox.server.sealing.filter import program

SET_FILTER = 22  # PR_SET_SECCOMP
FILTER_MODE = 2  # SECCOMP_MODE_FILTER
JOIN_SESSION_KEYRING = 1


def join_own_keyring() -> None:
    """Leaves the worker's keys behind.

    It is the filter that keeps sealed processes from all keys. So a user who has no room for a further keyring, or a
    container runtime that forbids it, is no reason to fail.
    """
    with contextlib.suppress(OSError):
        syscall(numbers(MISSING, os.uname().machine)["keyctl"], JOIN_SESSION_KEYRING, None)


class Seal:
    """The filter, made ready for children that are to set it before they become other programs."""

    def __init__(self, sockets: bool = True) -> None:
        """Raises `ValueError` on an architecture whose numbers are not known. `sockets`: as of `program`."""
        import ctypes  # as in `libc`

        code = program(os.uname().machine, sockets)
        self._code = ctypes.create_string_buffer(code, len(code))
        self._argument = struct.pack("@HP", len(code) // 8, ctypes.addressof(self._code))

    def set(self) -> None:
        """Seals this process, which must have no other threads. Raises `OSError`."""
        prctl(NO_NEW_PRIVILEGES, 1)
        try:
            call("prctl", SET_FILTER, FILTER_MODE, self._argument, 0, 0)
        except OSError as error:
            raise OSError(error.errno, f"this kernel filters no system calls (seccomp): {error.strerror}") from error


def hide_and_seal() -> None:
    """Seals a server that is inside, which no process inside can then trace either.

    Ends it with a message if there can be no seal.
    """
    hide_from_tracers()  # first: the seal makes that a call without effect
    join_own_keyring()
    try:
        Seal().set()
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
