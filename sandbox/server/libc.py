"""Calls of the C library that Python's standard library lacks."""

from __future__ import annotations

import functools
import os
from typing import Any

PARENT_DEATH_SIGNAL = 1
DUMPABLE = 4
CAPABILITY_BOUND_DROP = 24
CHILD_SUBREAPER = 36
NO_NEW_PRIVILEGES = 38


@functools.lru_cache(maxsize=None)
def _library() -> Any:
    import ctypes  # here, for it takes a kernel process three milliseconds that it has no use for

    return ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """Calls a function that answers 0 when it succeeds. Raises `OSError`."""
    import ctypes

    if getattr(_library(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def syscall(number: int, *arguments: Any) -> int:
    """Makes a system call by its number; its answer. Raises `OSError`."""
    import ctypes

    answer = int(_library().syscall(number, *arguments))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"system call {number}")
    return answer


def prctl(option: int, value: int) -> None:
    """Raises `OSError`."""
    call("prctl", option, value, 0, 0, 0)


def hide_from_tracers() -> None:
    """Processes of the same user can neither trace this one, nor read its memory, descriptors and environment."""
    prctl(DUMPABLE, 0)
