"""The images of this node: each source is fetched once, becomes a directory, and stays until its space is needed.

DIRECTORY/KEY/lock       its modification time is the last use; locked exclusively: being made or removed
DIRECTORY/KEY/image      what sandboxes run; appears whole or not at all
DIRECTORY/KEY/bytes      its size
DIRECTORY/.removed-*     what is being removed

Whoever uses an image holds the lock shared. A sandbox's own processes inherit it, so that the kernel takes an image out
of use when its last sandbox ends, whoever died before. An image that is in use is never removed.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.host.reachable import is_open
from sandbox.images.file_lock import lock, try_lock
from sandbox.images.source import ImageSource, image_source
from sandbox.images.tool import call

LIMIT_VARIABLE = "PRORL_IMAGES_BYTES"
LIMIT_BYTES = 50 << 30
BLOCK_BYTES = 4096
log = logging.getLogger(__name__)


def limit_bytes(environment: Mapping[str, str]) -> int:
    """The limit that the user has set, or the default. Raises `SandboxUnavailable`."""
    text = environment.get(LIMIT_VARIABLE) or str(LIMIT_BYTES)
    if not text.isdecimal():
        raise SandboxUnavailable(f"{LIMIT_VARIABLE}={text!r} is no number of bytes")
    return int(text)


class Image:
    """An image in use: until `close`, and for as long as a process has inherited `descriptor`."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self.descriptor = descriptor  # None: not one of the cache

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


class ImageCache:
    """`command` starts Apptainer, as the user (uid, gid) that will run the images."""

    def __init__(
        self, directory: Path, command: Sequence[str], user: tuple[int, int], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._directory = directory
        self._command = command
        self._user = user
        self._limit_bytes = limit_bytes

    async def fetch(self, text: str) -> Image:
        """The image of a source, fetched if nobody has yet; concurrent calls, also of other processes, share it.

        Raises `SandboxError` with Apptainer's own words.
        """
        source = await asyncio.to_thread(image_source, text)
        entry = self._directory / source.key
        while True:
            descriptor = _open_lock(entry)
            try:
                await lock(descriptor, exclusive=False)
                if _is_entry(entry, descriptor) and (entry / "image").is_dir():
                    now_ns = time.time_ns()  # the file system's own clock is coarse
                    os.utime(descriptor, ns=(now_ns, now_ns))
                    return Image(entry / "image", descriptor)
                await lock(descriptor, exclusive=True)
                if _is_entry(entry, descriptor) and not (entry / "image").is_dir():
                    await self._make(source, entry)
                    await asyncio.to_thread(self._make_room)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    async def _make(self, source: ImageSource, entry: Path) -> None:
        fresh = entry / "fresh"
        await asyncio.to_thread(remove_tree, fresh)  # of one that was cut short
        try:
            fresh.mkdir()
            os.chown(fresh, *self._user)
            uri = await asyncio.to_thread(self._readable, source, fresh)
            await call(["build", str(fresh / "image"), uri], self._command, _places(fresh))
            size = await asyncio.to_thread(_bytes_of, fresh / "image")
            (entry / "bytes").write_text(str(size), encoding="utf-8")
            (fresh / "image").rename(entry / "image")
        except SandboxError as error:
            raise SandboxError(f"the image {source.uri} cannot be fetched: {error}") from error
        finally:
            await asyncio.shield(asyncio.to_thread(remove_tree, fresh))

    def _readable(self, source: ImageSource, fresh: Path) -> str:
        """The source, or a copy of it where the user that runs Apptainer cannot read the file."""
        file = source.file
        if file is None or os.geteuid() == self._user[0] or (file.stat().st_mode & 0o004 and is_open(file.parent)):
            return source.uri
        copy = fresh / "source"
        shutil.copyfile(file, copy)
        copy.chmod(0o644)
        return source.uri.replace(str(file), str(copy))

    def _make_room(self) -> None:
        """Removes the least recently used until the rest fits; also what was left half made. Blocks."""
        for leftover in self._directory.glob(".removed-*"):
            remove_tree(leftover)
        sizes = {entry: _recorded_bytes(entry) for entry in sorted(self._directory.iterdir(), key=_last_use)}
        total = sum(sizes.values())
        for entry, size in sizes.items():
            half_made = not (entry / "image").is_dir()
            if (half_made or total > self._limit_bytes) and _remove_unused(entry):
                total -= size
        if total > self._limit_bytes:
            log.warning("%s holds %d bytes, over its limit of %d: all of it is in use", self._directory, total,
                        self._limit_bytes)  # fmt: skip


def _places(fresh: Path) -> dict[str, str]:
    """Variables that place Apptainer's own files where they are removed with the rest."""
    names = {"TMPDIR": "", "APPTAINER_TMPDIR": "", "APPTAINER_CONFIGDIR": "config", "APPTAINER_CACHEDIR": "cache"}
    return {name: str(fresh / place) for name, place in names.items()}


def _open_lock(entry: Path) -> int:
    while True:
        entry.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed in between
            return os.open(entry / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _is_entry(entry: Path, descriptor: int) -> bool:
    """True if a lock that was waited for still is the entry's: the entry may have been removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat((entry / "lock").stat(), os.fstat(descriptor))
    return False


def _remove_unused(entry: Path) -> bool:
    try:
        descriptor = os.open(entry / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(descriptor, exclusive=True) or not _is_entry(entry, descriptor):
            return False
        removed = entry.with_name(f".removed-{secrets.token_hex(8)}")
        entry.rename(removed)  # who waits for its lock will find it gone
    finally:
        os.close(descriptor)
    remove_tree(removed)
    return True


def remove_tree(directory: Path) -> None:
    """Also what its owner may not write to, as images have it."""
    if os.geteuid() != 0:
        for path, names, _ in os.walk(directory):
            for inner in (Path(path), *(Path(path, name) for name in names)):
                if not inner.is_symlink():
                    inner.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


def _last_use(entry: Path) -> int:
    with contextlib.suppress(OSError):
        return (entry / "lock").stat().st_mtime_ns
    return 0


def _recorded_bytes(entry: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((entry / "bytes").read_text(encoding="utf-8"))
    return 0


def _bytes_of(directory: Path) -> int:
    """In whole blocks of files' sizes: the blocks in use are not known before they are written."""
    paths = (Path(path, name) for path, _, names in os.walk(directory) for name in names)
    return sum(-(-path.lstat().st_size // BLOCK_BYTES) * BLOCK_BYTES for path in paths)
