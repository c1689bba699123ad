"""The writable places of a sandbox, as a table of what lies in them.

Whatever changes a file through the file system changes the time of its last change, which nobody inside can set. The
clock behind it has steps of some milliseconds: a scan is settled when a later change must show in the next one.
A write through a shared mapping changes no time on a file system in memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Iterator, NamedTuple

if TYPE_CHECKING:
    from typing import Tuple

    Signature = Tuple[int, int, int, int]  # mode, size, time of the last change, inode: see `OWN_INODE`

CLOCK_REALTIME_COARSE = 5  # the clock of file systems, by its number in the kernel
SCANS = 20  # at most, for one that is settled
STEP_S = 0.002
MOST_ENTRIES = 200_000
ENTERED = stat.S_IRUSR | stat.S_IXUSR
ESCAPED = re.compile(r"\\([0-7]{3})")  # in the kernel's table of mounts
# These bits of an inode's number in a stack of layers are the file's in its own layer. So it has the same number before
# and after that was sealed; another layer's file with this number has changed later.
OWN_INODE = (1 << 56) - 1
SHUT = 0  # the time of a directory that its owner cannot enter: a look at it changes the real one


class TooManyFiles(Exception):
    """The places hold more than can be looked at between two turns."""


class Tree(NamedTuple):
    """A scan: each path with its signature, and what could not be looked into."""

    entries: dict[str, Signature]
    closed: list[str]
    settled: bool


def settled_scan(places: tuple[str, ...]) -> Tree:
    """Scans until what changes later cannot have a time that was seen. Raises `TooManyFiles`."""
    for _ in range(SCANS):
        now = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        entries, closed, newest = _scan(places)
        if newest < now:
            return Tree(entries, closed, settled=True)
        time.sleep(STEP_S)
    return Tree(entries, closed, settled=False)


def _scan(places: tuple[str, ...]) -> tuple[dict[str, Signature], list[str], int]:
    entries: dict[str, Signature] = {}
    closed: list[str] = []
    newest = 0
    foreign = mounts_below(places)
    for place in places:
        with contextlib.suppress(OSError):
            found = os.lstat(place)
            entries[place] = (found.st_mode, found.st_size, found.st_ctime_ns, found.st_ino & OWN_INODE)
            newest = max(newest, found.st_ctime_ns, _scan_place(place, foreign, set(places), entries, closed))
    return entries, closed, newest


@functools.lru_cache(maxsize=None)
def mounts_below(places: tuple[str, ...]) -> frozenset[str]:
    """Mounts of the host in the places, as of their first scan: nobody inside can make one.

    Devices do not tell them: of an overlay, files of each layer may have another one.
    """
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        points = (line.split(" ", 5)[4] for line in table)
        found = {ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), point) for point in points}
    return frozenset(found.difference(places))


def _scan_place(
    place: str, foreign: frozenset[str], places: set[str], entries: dict[str, Signature], closed: list[str]
) -> int:
    """Mounts of the host are left out."""
    newest = 0
    waiting = [place]
    with contextlib.ExitStack() as shut:
        while waiting:
            directory = waiting.pop()
            try:
                if entries[directory][0] & ENTERED != ENTERED:
                    shut.enter_context(opened_up(directory, entries))
                with os.scandir(directory) as listing:
                    for entry in listing:
                        path = entry.path
                        if path in foreign:
                            continue
                        found = entry.stat(follow_symlinks=False)
                        mode, changed = found.st_mode, found.st_ctime_ns
                        entries[path] = (mode, found.st_size, changed, found.st_ino & OWN_INODE)
                        if changed > newest:  # noqa: PLR1730 - half of the time of a call
                            newest = changed
                        if mode & 0o170000 == 0o040000 and path not in places:
                            waiting.append(path)
            except FileNotFoundError:
                continue
            except OSError:
                closed.append(directory)
            if len(entries) > MOST_ENTRIES:
                raise TooManyFiles(f"more than {MOST_ENTRIES} files")
    return newest


@contextlib.contextmanager
def opened_up(path: str, entries: dict[str, Signature]) -> Iterator[None]:
    """Lets the owner into what it has shut itself out of, and leaves the mode as it was.

    That is a change; so the time of a directory that needs it does not count.
    """
    mode, size, _, inode = entries[path]
    needed = ENTERED if stat.S_ISDIR(mode) else stat.S_IRUSR
    if mode & needed == needed:
        yield
        return
    os.chmod(path, stat.S_IMODE(mode) | needed)
    try:
        yield
    finally:
        os.chmod(path, stat.S_IMODE(mode))
        entries[path] = (mode, size, SHUT if stat.S_ISDIR(mode) else os.lstat(path).st_ctime_ns, inode)
