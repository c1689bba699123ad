"""Blobs of images as they came, by digest, on storage that nodes may share.

DIRECTORY/id                 names this storage: nodes that read the same one share it
DIRECTORY/sha256/HEX         a whole blob, checked; its modification time is the last use
DIRECTORY/sha256/HEX.part    the beginning of one
DIRECTORY/names/KEY          the digest that a name with a tag has led to

Bytes are written at their own place in a part and never past its end, so two that fetch the same blob, because a lease
was lost, write the same.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Final

from sandbox.errors import ImageUnavailable

CHUNK_BYTES: Final = 1 << 20
KEPT_S: Final = 600  # a blob used so lately is not removed: another node may be unpacking it


class BlobStorage:
    """All methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._blobs = directory / "sha256"
        self._names = directory / "names"

    def identity(self) -> str:
        """The name of this storage, given at its first use."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._names.mkdir(exist_ok=True)
        file = self._directory / "id"
        if not file.exists():
            _write_once(file, secrets.token_hex(8).encode())
        return file.read_text(encoding="ascii")

    def path(self, digest: str) -> Path:
        return self._blobs / digest.removeprefix("sha256:")

    def part(self, digest: str) -> Path:
        return self.path(digest).with_suffix(".part")

    def has(self, digest: str) -> bool:
        """Counts as a use."""
        with contextlib.suppress(OSError):
            os.utime(self.path(digest))
            return True
        return False

    def bytes_of(self, digest: str) -> int:
        """So many bytes of a blob are there."""
        for path in (self.path(digest), self.part(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def put(self, digest: str, data: bytes) -> None:
        """A small blob, whole. Raises `ImageUnavailable` for data of another digest."""
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise ImageUnavailable(f"what came for {digest} has another digest", final=True)
        _write_once(self.path(digest), data)

    def finish(self, digest: str) -> bool:
        """Makes a part the blob if it has the digest; else removes it."""
        part = self.part(digest)
        try:
            stream = part.open("rb")
        except FileNotFoundError:  # another one was faster
            return self.path(digest).exists()
        with stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != digest.removeprefix("sha256:"):
                part.unlink(missing_ok=True)
                return False
            os.fsync(stream.fileno())
        with contextlib.suppress(FileNotFoundError):  # another one was faster
            part.rename(self.path(digest))
        return self.path(digest).exists()

    def resolved(self, key: str) -> str | None:
        """The digest that a name was found to mean."""
        with contextlib.suppress(OSError):
            return (self._names / key).read_text(encoding="ascii")
        return None

    def resolve(self, key: str, digest: str) -> str:
        """Notes the digest of a name; the one that stands there already counts."""
        _write_once(self._names / key, digest.encode())
        return self.resolved(key) or digest

    def forget(self, key: str) -> None:
        (self._names / key).unlink(missing_ok=True)

    def make_room(self, limit_bytes: int) -> int:
        """Removes the least recently used until the rest fits; so many bytes. One that is read meanwhile stays open."""
        found = []
        for path in self._blobs.iterdir():
            with contextlib.suppress(FileNotFoundError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total, removed = sum(size for _, size, _ in found), 0
        for used, size, path in sorted(found):
            if total - removed <= limit_bytes or used > time.time() - KEPT_S:
                break
            path.unlink(missing_ok=True)
            removed += size
        return removed


def _write_once(path: Path, data: bytes) -> None:
    """Appears whole; what another process has put there stays."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fresh.write_bytes(data)
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
            raise
        if not path.exists():  # a file system without links: between two that come at once, the last one stays
            fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
