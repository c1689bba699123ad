"""Entries of the cache: directories with a lock, which appear whole and are removed when nobody holds them."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from sandbox.host.trees import remove_tree
from sandbox.images.file_lock import try_lock

BLOCK_BYTES: Final = 4096
REMOVED: Final = ".removed-"


class CacheEntry(msgspec.Struct, frozen=True):
    """An entry as it was looked at."""

    path: Path
    used_ns: int
    bytes: int
    made: bool
    source: str  # the name that it was fetched by; empty where none is noted
    layers: tuple[str, ...]  # the entries whose files it shares


def open_lock(entry: Path) -> int:
    while True:
        entry.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed in between
            return os.open(entry / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def is_entry(entry: Path, descriptor: int) -> bool:
    """True if a lock that was waited for still is the entry's: the entry may have been removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat((entry / "lock").stat(), os.fstat(descriptor))
    return False


def look(directory: Path) -> list[CacheEntry]:
    """All entries of a cache, the least recently used first."""
    if not directory.is_dir():
        return []
    found = [_look(path) for path in directory.iterdir() if not path.name.startswith(".")]
    return sorted(found, key=lambda entry: entry.used_ns)


def remove_unused(entry: Path) -> bool:
    """False if somebody holds it, or it is gone."""
    try:
        descriptor = os.open(entry / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(descriptor, exclusive=True) or not is_entry(entry, descriptor):
            return False
        removed = entry.with_name(f"{REMOVED}{secrets.token_hex(8)}")
        entry.rename(removed)  # who waits for its lock will find it gone
    finally:
        os.close(descriptor)
    remove_tree(removed)
    return True


def in_use(entry: Path) -> bool:
    """True if somebody holds it: a sandbox that runs it, or who makes or removes it."""
    try:
        descriptor = os.open(entry / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor, exclusive=True)
    finally:
        os.close(descriptor)


def bytes_of(directory: Path, *, shared: bool = False) -> int:
    """In whole blocks of files' sizes: the blocks in use are not known before they are written. `shared`: without
    files that have another name elsewhere.
    """
    total = 0
    for path, _, names in os.walk(directory):
        total += BLOCK_BYTES if shared else 0
        for name in names:
            state = os.lstat(os.path.join(path, name))  # noqa: PTH118 - of an image's 100,000 files
            if not (shared and state.st_nlink > 1):
                total += -(-state.st_size // BLOCK_BYTES) * BLOCK_BYTES
    return total


def _look(path: Path) -> CacheEntry:
    used_ns = 0
    with contextlib.suppress(OSError):
        used_ns = (path / "lock").stat().st_mtime_ns
    size = _text(path / "bytes")
    return CacheEntry(
        path, used_ns, int(size) if size.isdecimal() else 0, (path / "image").is_dir(), _text(path / "source"),
        tuple(_text(path / "layers").split()),
    )  # fmt: skip


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""
