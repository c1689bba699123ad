"""Changed files of a sandbox, written into an archive."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Iterator, NamedTuple

from sandbox.server.checkpoint.archive import LARGEST, PIECE, ArchiveWriter, blake2b
from sandbox.server.checkpoint.tree import SHUT, Signature, Tree, opened_up

SKIPPED = {stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
OWN_ATTRIBUTES = ("security.",)  # of the kernel's own making


class TreeChanges(NamedTuple):
    """The paths in which a tree differs from its beginning, in their order."""

    changed: list[str]
    gone: list[str]


def changes_of(baseline: Tree, tree: Tree) -> TreeChanges:
    """A directory's removal stands for all that was in it."""
    before, now = baseline.entries, tree.entries
    changed = sorted(path for path, found in now.items() if before.get(path) != found)
    gone = sorted(path for path in before if path not in now and os.path.dirname(path) in now)
    return TreeChanges(changed, gone)


def beginnings(places: tuple[str, ...], tree: Tree) -> list[str]:
    """A digest for each place of what it held at the mark, but for times and contents."""
    made = []
    paths = sorted(tree.entries)
    for place in places:
        digest = blake2b(digest_size=16)
        for path in paths:
            if path == place or path.startswith(place + "/"):
                mode, size = tree.entries[path][:2]
                told = (path, mode, size if stat.S_ISREG(mode) else 0)
                digest.update(repr(told).encode("utf-8", "surrogateescape"))
        made.append(digest.hexdigest())
    return made


class FilePacker:
    """Writes entries of a tree into an archive, and remembers what cannot be kept."""

    def __init__(self, places: tuple[str, ...], tree: Tree, writer: ArchiveWriter) -> None:
        self._places = sorted(range(len(places)), key=lambda index: -len(places[index]))
        self._names = places
        self._tree = tree
        self._writer = writer
        self._links: dict[tuple[int, int], list[object]] = {}
        self.lost: list[str] = []

    def pack(self, changes: TreeChanges) -> None:
        """Raises `ArchiveTooLarge`, before it reads much where that can be known."""
        entries = self._tree.entries
        with contextlib.ExitStack() as shut:
            for path in sorted(path for path, found in entries.items() if found[2] == SHUT):
                shut.enter_context(opened_up(path, entries))
            self._writer.require(sum(map(self._held_bytes, changes.changed)))
            for path in changes.gone:
                self._writer.add({"t": "gone", "at": self._at(path)})
            for path in changes.changed:
                self._try_to_pack(path)

    def _try_to_pack(self, path: str) -> None:
        try:
            self._pack(path)
        except OSError as error:
            self.lost.append(f"{path} cannot be read: {error.strerror}")

    def _held_bytes(self, path: str) -> int:
        """At least what a file will take: one that has several names is counted when it comes."""
        mode, size = self._tree.entries[path][:2]
        if not stat.S_ISREG(mode) or not size:
            return 0
        try:
            found = os.lstat(path)
        except OSError:
            return 0
        return min(size, found.st_blocks * 512) if found.st_nlink == 1 else 0

    def _at(self, path: str) -> list[object]:
        for index in self._places:
            place = self._names[index]
            if path == place or path.startswith(place + "/"):
                return [index, path[len(place) + 1 :]]
        raise ValueError(path)

    def _pack(self, path: str) -> None:
        found = os.lstat(path)
        kind = stat.S_IFMT(found.st_mode)
        if kind in SKIPPED:
            self.lost.append(f"{path} is a {SKIPPED[kind]}")
            return
        if abs(found.st_mtime_ns) > LARGEST:
            self.lost.append(f"{path} has a time that is too far away")
            return
        record: dict[str, object] = {
            "at": self._at(path),
            "mode": stat.S_IMODE(self._tree.entries[path][0]),  # what is shut is open now
            "time": found.st_mtime_ns,
        }
        if not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1:
            first = self._links.get((found.st_dev, found.st_ino))
            if first is not None:
                self._writer.add({"t": "link", "at": record["at"], "to": first})
                return
        if stat.S_ISLNK(kind):
            self._writer.add(dict(record, t="symlink", to=os.readlink(path)))
        elif stat.S_ISREG(kind):
            with opened_up(path, self._tree.entries):
                self._pack_file(path, record)
        else:
            self._writer.add(dict(record, t="dir" if stat.S_ISDIR(kind) else "fifo"))
        self._links[found.st_dev, found.st_ino] = record["at"]  # type: ignore[assignment]
        if any(not name.startswith(OWN_ATTRIBUTES) for name in os.listxattr(path, follow_symlinks=False)):
            self.lost.append(f"{path} has extended attributes")

    def _pack_file(self, path: str, record: dict[str, object]) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = _signature(descriptor)
            parts = list(_parts(descriptor, before[1]))
            self._writer.require(sum(size for _, size in parts))
            self._writer.add(dict(record, t="file", size=before[1], parts=parts))
            for start, size in parts:
                self._copy(descriptor, start, size)
            if _signature(descriptor) != before:
                self.lost.append(f"{path} changed while it was saved")
        finally:
            os.close(descriptor)

    def _copy(self, descriptor: int, start: int, size: int) -> None:
        """Exactly so many bytes: what a file that has shrunk lacks is made up, and noticed behind it."""
        while size:
            piece = os.pread(descriptor, min(size, PIECE), start) or bytes(min(size, PIECE))
            self._writer.write(piece)
            start += len(piece)
            size -= len(piece)


def _signature(descriptor: int) -> Signature:
    found = os.fstat(descriptor)
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino


def _parts(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and length of what is no hole."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = min(size, os.lseek(descriptor, start, os.SEEK_HOLE))
        yield start, end - start
