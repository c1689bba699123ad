"""Files of an archive, written into the writable places of a sandbox.

Every path is walked from its place on, one directory at a time, through no link and into no other file system: so
whoever made the archive reaches nothing but these places.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Iterator

from sandbox.server.checkpoint.archive import LARGEST, PIECE, ArchiveReader, Unrestorable, count, field

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PATH_BYTES = 4096


class FileUnpacker:
    """Applies records to the places. Raises `Unrestorable`, and the `OSError` of what failed."""

    def __init__(self, places: tuple[str, ...], reader: ArchiveReader) -> None:
        self._places = places
        self._reader = reader
        self._devices = [os.stat(place).st_dev for place in places]
        self._parent = -1  # an open directory, kept for the next entry
        self._parent_is: tuple[int, str] = (-1, "")
        self._directories: dict[tuple[int, str], tuple[int, int]] = {}  # mode and time that they are to have at last

    def apply(self, record: dict[str, Any]) -> None:
        kind = record.get("t")
        where = self._where(record, "at")
        if kind == "dir":
            self._make_directory(where, record)
            return
        if not where[1]:
            raise Unrestorable("a writable place cannot be anything but a directory")
        parent, name = self._enter(where)
        _remove(parent, name)
        if kind == "file":
            self._write_file(parent, name, record)
        elif kind == "symlink":
            os.symlink(field(record, "to", str), name, dir_fd=parent)
            os.utime(name, ns=_times(record), dir_fd=parent, follow_symlinks=False)
        elif kind == "fifo":
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._finish(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=parent), record)
        elif kind == "link":
            self._link(parent, name, self._where(record, "to"))
        elif kind != "gone":
            raise Unrestorable(f"the checkpoint has an entry of an unknown kind: {str(kind)[:40]}")

    def finish(self) -> None:
        """Directories get their modes and times when nothing is written into them any more, the innermost first."""
        for where in sorted(self._directories, key=lambda where: -where[1].count("/")):
            mode, time_ns = self._directories[where]
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                descriptor = self._open(where)
                try:
                    os.fchmod(descriptor, mode)
                    os.utime(descriptor, ns=(time_ns, time_ns))
                finally:
                    os.close(descriptor)
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._parent >= 0:
            os.close(self._parent)
        self._parent, self._parent_is = -1, (-1, "")

    def _where(self, record: dict[str, Any], name: str) -> tuple[int, str]:
        place, path = (*field(record, name, list), None, None)[:2]
        if type(place) is not int or not 0 <= place < len(self._places) or type(path) is not str:
            raise Unrestorable(f"a record of the checkpoint has no valid {name}")
        try:
            raw = os.fsencode(path)
        except UnicodeError:
            raise Unrestorable("a path in the checkpoint is none") from None
        if path and (len(raw) > PATH_BYTES or b"\0" in raw or not {b"", b".", b".."}.isdisjoint(raw.split(b"/"))):
            raise Unrestorable(f"a path in the checkpoint leads out of its place: {path[:200]!r}")
        return place, path

    def _enter(self, where: tuple[int, str]) -> tuple[int, str]:
        """The open directory of an entry, and the entry's name there."""
        above, _, name = where[1].rpartition("/")
        parent = (where[0], above)
        if self._parent < 0 or self._parent_is != parent:
            self.close()
            self._parent, self._parent_is = self._open(parent), parent
        return self._parent, name

    def _open(self, where: tuple[int, str]) -> int:
        """A directory; what it is to look like at last is remembered."""
        place, path = where
        descriptor = os.open(self._places[place], DIRECTORY)
        walked = ""
        try:
            self._open_up((place, ""), descriptor, None)
            for name in path.split("/") if path else ():
                walked = f"{walked}/{name}" if walked else name
                self._open_up((place, walked), descriptor, name)
                inner = os.open(name, DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
                self._require_device(place, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _require_device(self, place: int, descriptor: int) -> None:
        if os.fstat(descriptor).st_dev != self._devices[place]:
            raise Unrestorable(f"a path in the checkpoint leads to another file system than {self._places[place]}")

    def _open_up(self, where: tuple[int, str], descriptor: int, name: str | None) -> None:
        """Lets the owner into a directory, and remembers what it was like."""
        found = os.fstat(descriptor) if name is None else os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        self._directories.setdefault(where, (mode, found.st_mtime_ns))
        if not stat.S_ISDIR(found.st_mode) or mode & 0o700 == 0o700:
            return
        if name is None:
            os.fchmod(descriptor, mode | 0o700)
        else:
            os.chmod(name, mode | 0o700, dir_fd=descriptor)

    def _make_directory(self, where: tuple[int, str], record: dict[str, Any]) -> None:
        if where[1]:
            parent, name = self._enter(where)
            if not _is_directory(parent, name):
                _remove(parent, name)
                os.mkdir(name, 0o700, dir_fd=parent)
        self._directories[where] = (count(record, "mode", 0o7777), _times(record)[0])

    def _write_file(self, parent: int, name: str, record: dict[str, Any]) -> None:
        size = count(record, "size", LARGEST)
        descriptor = os.open(name, FRESH, 0o600, dir_fd=parent)
        try:
            os.ftruncate(descriptor, size)
            for start, left in _parts_of(record, size):
                self._fill_part(descriptor, start, left)
        except BaseException:
            os.close(descriptor)
            raise
        self._finish(descriptor, record)

    def _fill_part(self, descriptor: int, start: int, left: int) -> None:
        os.lseek(descriptor, start, os.SEEK_SET)
        while left:
            piece = memoryview(self._reader.read(min(left, PIECE)))
            left -= len(piece)
            while piece:
                piece = piece[os.write(descriptor, piece) :]

    def _finish(self, descriptor: int, record: dict[str, Any]) -> None:
        try:
            os.fchmod(descriptor, count(record, "mode", 0o7777))
            os.utime(descriptor, ns=_times(record))
        finally:
            os.close(descriptor)

    def _link(self, parent: int, name: str, to: tuple[int, str]) -> None:
        above, _, source = to[1].rpartition("/")
        other = self._open((to[0], above))
        try:
            os.link(source, name, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(other)


def _parts_of(record: dict[str, Any], size: int) -> Iterator[tuple[int, int]]:
    for part in field(record, "parts", list):
        start, left = (*part, None, None)[:2] if type(part) is list else (None, None)
        if type(start) is not int or type(left) is not int or not 0 <= start <= start + left <= size:
            raise Unrestorable("a file in the checkpoint has no valid parts")
        yield start, left


def _times(record: dict[str, Any]) -> tuple[int, int]:
    time_ns = field(record, "time", int)
    if abs(time_ns) > LARGEST:
        raise Unrestorable("a record of the checkpoint has no valid time")
    return time_ns, time_ns


def _is_directory(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(parent: int, name: str) -> None:
    """Removes whatever is there, if anything is."""
    if not _is_directory(parent, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        return
    os.chmod(name, 0o700, dir_fd=parent)
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        for inner in os.listdir(descriptor):
            _remove(descriptor, inner)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)
