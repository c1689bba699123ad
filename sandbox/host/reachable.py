"""A directory that an unprivileged user can reach: what root binds into a sandbox is read as `nobody`."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from sandbox.errors import SandboxUnavailable

COPIES = Path("/var/tmp")  # noqa: S108 - what lies there is root's own, and checked to be


def reachable(directory: Path) -> Path:
    """The directory itself, or a copy of it where a parent shuts others out, as /root does.

    The copy is made once for each state of the original, appears whole or not at all, and belongs to root.
    """
    if is_open(directory):
        return directory
    directory = directory.resolve()  # one copy, whatever links lead there
    state = f"{directory} {directory.stat().st_mtime_ns}"
    digest = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
    copy = COPIES / f"prorl-sandbox-{os.getuid()}-{digest}"
    if not _is_ours(copy):
        with tempfile.TemporaryDirectory(prefix=f"{copy.name}.", dir=COPIES) as name:
            fresh = Path(name, "copy")
            shutil.copytree(directory, fresh, symlinks=True)
            fresh.chmod(0o755)
            try:
                fresh.rename(copy)
            except OSError:
                if not _is_ours(copy):  # else another process was faster
                    raise
    return copy


def reachable_place(directory: Path) -> Path:
    """A directory to fill: the given one, or where its parents shut others out, one of this machine by the same name.

    Other processes may fill it at the same time. Raises `SandboxUnavailable` if the name belongs to another user.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if is_open(directory):
        return directory
    place = COPIES / f"prorl-sandbox-{os.getuid()}-{directory.name}"
    place.mkdir(mode=0o755, exist_ok=True)
    if not _is_ours(place):
        raise SandboxUnavailable(f"{place} belongs to another user: remove it, or give a --state-dir that all can pass")
    return place


def is_open(directory: Path) -> bool:
    """True if all can enter it: where links lead counts, not where they lie."""
    place = directory.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (place, *place.parents))


def _is_ours(copy: Path) -> bool:
    try:
        found = copy.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.getuid() and not copy.is_symlink() and copy.is_dir()
