"""Starts a sandbox's first process with exactly the descriptors that it is meant to have."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence

FIRST_TARGET = 10
FIRST_SOURCE = 200  # sources and targets never meet, so placing one cannot overwrite another


class Descriptors:
    """Host descriptors that get fixed numbers in the new process: 10, 11, ... in the order they are added.

    All stay close-on-exec here, so two sandboxes started at once cannot inherit from each other.
    """

    def __init__(self) -> None:
        self._sources: list[int] = []

    def add(self, descriptor: int) -> int:
        """The number under which the new process finds a duplicate of this descriptor."""
        self._sources.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_SOURCE))
        return FIRST_TARGET + len(self._sources) - 1

    def add_data(self, name: str, data: bytes) -> int:
        """The same for a file in memory that holds `data`."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as stream:
                stream.write(data)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return self.add(descriptor)
        finally:
            os.close(descriptor)

    def actions(self) -> list[tuple[int, int, int]]:
        return [(os.POSIX_SPAWN_DUP2, source, FIRST_TARGET + at) for at, source in enumerate(self._sources)]

    def close(self) -> None:
        while self._sources:
            os.close(self._sources.pop())


def launch(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    descriptors: Descriptors,
    stderr: int,
    stdin: int | None = None,
    stdout: int | None = None,
) -> int:
    """Starts a process in a session of its own, so that it outlives its maker. The caller reaps it."""
    silent = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        streams = (silent if stdin is None else stdin, silent if stdout is None else stdout, stderr)
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(streams)]
        return os.posix_spawn(
            argv[0], list(argv), dict(env),
            file_actions=actions + descriptors.actions(), setsid=True, setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )  # fmt: skip
    finally:
        os.close(silent)


def words_of(stderr: int) -> str:
    """Standard error, so far, of a process that failed to start."""
    os.set_blocking(stderr, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(stderr, 8192).decode("utf-8", "replace").strip()
    return ""
