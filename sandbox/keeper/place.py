"""The address of the keeper of a node and service, and whether it runs: the lock of its directory says so."""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from sandbox.errors import SandboxError

WAIT_S = 40.0  # a sweep that holds the lock may have to wait for the kernel to end a process
LOOK_S = 0.05
TURN = "turn"
FREE, HELD = fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_EX | fcntl.LOCK_NB


class AlreadyKept(SandboxError):
    """Another keeper serves this node and service; a second one would have nothing to do."""

    retryable = False


def place(state_dir: Path, service: str, node: str) -> Path:
    """The keeper's private directory: its lock, and its socket while it runs."""
    return state_dir.absolute() / "keepers" / f"{quote(service, safe='')}@{quote(node, safe='')}"


def all_below(state_dir: Path) -> list[Path]:
    """The places under a state directory, of any service and node."""
    found = state_dir.absolute() / "keepers"
    return sorted(found.iterdir()) if found.is_dir() else []


@contextlib.asynccontextmanager
async def occupied(directory: Path) -> AsyncIterator[None]:
    """Holds the place for its one keeper. Raises `AlreadyKept`. The lock ends with the process, however that ends.

    It holds its turn first, so that no sweep begins while it waits: those of many workers would overlap without limit.
    """
    with _lock(directory, TURN) as turn, _lock(directory) as lock:
        try:
            async with asyncio.timeout(WAIT_S):
                for each in (turn, lock):
                    while not _locked(each.fileno(), HELD):
                        await asyncio.sleep(LOOK_S)  # nothing tells when a lock is free, but one that blocks forever
        except TimeoutError:
            raise AlreadyKept(f"{directory} has a keeper already: stop it, or use another state directory") from None
        yield


@contextlib.contextmanager
def unkept(directory: Path) -> Iterator[bool]:
    """Yields True if no keeper runs or waits. If so, none starts before the end of this context; others may be in it
    too.
    """
    awaited = _awaited(directory)
    with _lock(directory) as lock:
        yield not awaited and _locked(lock.fileno(), FREE)


def _awaited(directory: Path) -> bool:
    """A keeper has its turn. Looked at and let go at once: it is never in a keeper's way for long."""
    with _lock(directory, TURN) as turn:
        return not _locked(turn.fileno(), FREE)


def _lock(directory: Path, name: str = "lock") -> IO[str]:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return (directory / name).open("w")


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    return True
