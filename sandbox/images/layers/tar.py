"""Unpacks one layer into a directory of its own. Whoever made the layer may be hostile.

Every entry is made through descriptors of its parents, none of which is a link, so nothing is written outside of the
directory. Devices, pipes and sockets are left out; set-user bits are dropped; everything belongs to the caller and is
readable to it. Bytes and entries are bounded.
"""

import errno
import os
import stat
import tarfile
from contextlib import ExitStack, suppress
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, cast

import msgspec

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
COPY_BYTES: Final = 1 << 20
MOST_PARTS: Final = 256  # of a path
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Hostile(Exception):
    """An entry that no honest layer has; the message names it."""


class Bounds(msgspec.Struct, frozen=True):
    """Of one layer when it is unpacked."""

    bytes: int
    entries: int = 2_000_000


class Whiteouts(msgspec.Struct):
    """Paths that a layer takes away from those below it, and directories whose content below is gone."""

    removed: list[str] = []
    opaque: list[str] = []


def unpack(stream: BinaryIO, root: str, bounds: Bounds) -> Whiteouts:
    """Raises `Hostile`, `tarfile.TarError` or `OSError`."""
    found, modes = Whiteouts(), dict[str, int]()
    left, entries = bounds.bytes, 0
    with ExitStack() as stack:
        top = os.open(root, _DIRECTORY)
        stack.callback(os.close, top)
        with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as tar:
            while (member := tar.next()) is not None:
                entries += 1
                unknown = member.type not in tarfile.SUPPORTED_TYPES  # has content, which is read and thrown away
                left -= max(0, member.size) if member.isreg() or unknown else 0
                if left < 0 or entries > bounds.entries:
                    raise Hostile(f"it unpacks to more than {bounds.bytes} bytes or {bounds.entries} entries")
                _entry(tar, member, top, found, modes)
                cast("Any", tar).members.clear()  # it keeps each: a million are a gigabyte
        _set_modes(top, modes)
    return found


def parts_of(name: str) -> tuple[str, ...]:
    """A path's parts below the root. Raises `Hostile` for one that leaves it."""
    parts = tuple(part for part in PurePosixPath(name.lstrip("/")).parts if part != ".")
    if ".." in parts or "\0" in name or len(parts) > MOST_PARTS:
        raise Hostile(f"the path {name[:200]!r} leaves the image, or is too deep")
    return parts


def parent_of(top: int, parts: tuple[str, ...], *, make: bool) -> int:
    """A descriptor of the directory that a path lies in. Raises `Hostile` where a part of it is no directory."""
    at = os.dup(top)
    try:
        for part in parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=at)
            below = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
    except OSError as error:
        os.close(at)
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise Hostile(f"the path {'/'.join(parts)[:200]!r} leads through a link or a file") from error
        raise
    return at


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo, top: int, found: Whiteouts, modes: dict[str, int]) -> None:
    parts = parts_of(member.name)
    if not parts:
        return
    path, name = "/".join(parts), parts[-1]
    if name == OPAQUE:
        found.opaque.append("/".join(parts[:-1]))
        return
    if name.startswith(WHITEOUT):
        if name in {WHITEOUT, f"{WHITEOUT}.", f"{WHITEOUT}.."}:
            raise Hostile(f"the entry {path[:200]!r} takes away nothing that has a name")
        found.removed.append("/".join((*parts[:-1], name.removeprefix(WHITEOUT))))
        return
    if not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
        return
    parent = parent_of(top, parts, make=True)
    try:
        if member.isdir():
            _directory(parent, name)
            modes[path] = (member.mode & 0o777) | 0o700
        else:
            _remove(parent, name)
            _made(tar, member, parent, name, top)
    finally:
        os.close(parent)


def _made(tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str, top: int) -> None:
    if member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
    elif member.islnk():
        target = parts_of(member.linkname)
        if not target:
            raise Hostile(f"{member.name[:200]!r} is a hard link to the image's root")
        source = parent_of(top, target, make=False)
        try:
            os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)
    else:
        _file(tar, member, parent, name)


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    source = tar.extractfile(member)
    assert source is not None
    descriptor = os.open(name, _FILE, 0o600, dir_fd=parent)
    try:
        while data := source.read(COPY_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, (member.mode & 0o777) | 0o400)
        os.utime(descriptor, (member.mtime, member.mtime))
    finally:
        os.close(descriptor)


def _directory(parent: int, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o755, dir_fd=parent)


def _remove(parent: int, name: str) -> None:
    """A later entry of one name wins; a directory that is not empty stays, and the entry fails."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        os.rmdir(name, dir_fd=parent)


def _set_modes(top: int, modes: dict[str, int]) -> None:
    """Of directories, last: one that may not be searched by others could not be filled by them."""
    for path, mode in modes.items():
        parts = tuple(path.split("/"))
        with suppress(FileNotFoundError, Hostile):  # replaced since
            parent = parent_of(top, parts, make=False)
            try:
                descriptor = os.open(parts[-1], _DIRECTORY, dir_fd=parent)
            except OSError:
                continue
            finally:
                os.close(parent)
            try:
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
