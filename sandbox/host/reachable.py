"""A directory that an unprivileged user can reach: what root binds into a sandbox is read as `nobody`."""

import os
from pathlib import Path

from sandbox.errors import SandboxUnavailable
from sandbox.host import copies


def reachable(directory: Path) -> Path:
    """The directory itself, or a copy of it where a parent shuts others out, as /root does.

    Raises `SandboxUnavailable`.
    """
    return directory if is_open(directory) else copies.copy_of(directory)


def reachable_place(directory: Path) -> Path:
    """A directory to fill: the given one, or where its parents shut others out, one of this machine by the same name.

    Other processes may fill it at the same time. Raises `SandboxUnavailable` if the name belongs to another user.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if is_open(directory):
        return directory
    place = copies.PLACE / f"prorl-sandbox-{os.getuid()}-{directory.name}"
    place.mkdir(mode=0o755, exist_ok=True)
    if not copies.is_ours(place):
        raise SandboxUnavailable(f"{place} belongs to another user: remove it, or give a --state-dir that all can pass")
    return place


def is_open(directory: Path) -> bool:
    """True if all can enter it: where links lead counts, not where they lie."""
    place = directory.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (place, *place.parents))
