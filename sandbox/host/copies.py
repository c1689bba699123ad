"""Copies of directories that others cannot reach, in a place where they can.

A copy is made once for each state of its original. It has a lock beside it, which names the original and which each
process that uses the copy holds until it ends. A copy whose original is gone or has changed is removed once no process
holds it and no sandbox has it mounted: by a sweep, or when another copy is made.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandbox.errors import SandboxUnavailable
from sandbox.host.trees import remove_tree

PLACE = Path("/var/tmp")  # noqa: S108 - what lies there is this user's own, and checked to be
LOCK: Final = ".of"
LEFT_S: Final = 3600.0  # what was begun so long ago was begun by a process that is gone
_COPY: Final = re.compile(r"prorl-sandbox-(\d+)-[0-9a-f]{16}")
_held: dict[Path, int] = {}  # the locks of this process, by copy


def copy_of(original: Path) -> Path:
    """The copy of a directory as it is now. It appears whole or not at all, belongs to this user, and stays for as long
    as this process lives. Raises `SandboxUnavailable` where its name belongs to another user.
    """
    original = original.resolve()  # one copy, whatever links lead there
    copy = PLACE / _name(original)
    if copy not in _held:
        sweep()
        _held[copy] = _lock(copy, original)
    if not is_ours(copy):
        _make(copy, original)
    return copy


def sweep() -> list[Path]:
    """Removes copies that are of no use any more, and what killed processes left half made; the copies."""
    removed = []
    for lock in _ours(LOCK):
        copy = lock.with_suffix("")
        if _stale(copy, lock) and _remove(copy, lock):
            removed.append(copy)
    long_ago = time.time() - LEFT_S
    for half in _ours(".new-*"):
        with contextlib.suppress(FileNotFoundError):
            if half.lstat().st_ctime < long_ago:
                remove_tree(half)
    return removed


def is_ours(copy: Path) -> bool:
    """True for a directory of this user; what a link leads to is not trusted."""
    try:
        found = copy.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.getuid() and not copy.is_symlink() and copy.is_dir()


def _name(original: Path) -> str:
    state = f"{original} {original.stat().st_mtime_ns}"
    return f"prorl-sandbox-{os.getuid()}-{hashlib.blake2b(state.encode(), digest_size=8).hexdigest()}"


def _lock(copy: Path, original: Path) -> int:
    path = copy.with_name(copy.name + LOCK)
    while True:
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxUnavailable(f"{path} cannot be opened: {error.strerror}; remove it") from None
        if os.fstat(held).st_uid != os.getuid():
            os.close(held)
            raise SandboxUnavailable(f"{path} belongs to another user: remove it")
        fcntl.flock(held, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), os.fstat(held)):
                os.pwrite(held, os.fsencode(original), 0)
                return held
        os.close(held)  # it was removed in between


def _make(copy: Path, original: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{copy.name}.new-", dir=PLACE) as name:
        fresh = Path(name, "copy")
        shutil.copytree(original, fresh, symlinks=True)
        fresh.chmod(0o755)
        try:
            fresh.rename(copy)
        except OSError:
            if not is_ours(copy):  # else another process was faster
                raise


def _ours(ending: str) -> Iterator[Path]:
    for path in PLACE.glob(f"prorl-sandbox-{os.getuid()}-*{ending}"):
        with contextlib.suppress(FileNotFoundError):  # another process removes it, too
            if _COPY.fullmatch(path.name.partition(".")[0]) and path.lstat().st_uid == os.getuid():
                yield path


def _stale(copy: Path, lock: Path) -> bool:
    try:
        return _name(Path(os.fsdecode(lock.read_bytes()))) != copy.name
    except OSError:
        return True  # its original is gone


def _remove(copy: Path, lock: Path) -> bool:
    """False while a process holds it, or a sandbox has it mounted."""
    try:
        held = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(lock.lstat(), os.fstat(held)) or not _stale(copy, lock) or _mounted(copy):
            return False
        if is_ours(copy):
            remove_tree(copy)
        lock.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(held)
    return True


def _mounted(copy: Path) -> bool:
    """A sandbox may outlive the process that made it."""
    name = f"/{copy.name}".encode()
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if name in path.read_bytes():
                return True
    return False
