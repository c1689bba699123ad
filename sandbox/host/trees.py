"""Removal of directories that a sandbox wrote to, or that an image holds."""

import contextlib
import os
import shutil
from pathlib import Path

OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(directory: Path) -> None:
    """Also what its owner may not write to or enter, and what lies deeper than a path can be long.

    Blocks; does nothing if there is none. Others may be removing it too. What cannot be removed stays.
    """
    if directory.is_symlink():
        return
    with contextlib.suppress(OSError):
        _empty(directory)
    with contextlib.suppress(RecursionError):
        shutil.rmtree(directory, ignore_errors=True)


def _empty(directory: Path) -> None:
    """Holds one directory open, however deep it is. Raises `OSError` for what cannot be removed."""
    if os.geteuid() != 0:
        directory.chmod(0o700)
    here = os.open(directory, OPENED)
    names: list[str] = []  # of the directories that lead to it
    try:
        while (name := _without_files(here)) is not None or names:
            if name is not None:
                if os.geteuid() != 0:
                    os.chmod(name, 0o700, dir_fd=here)
                there = os.open(name, OPENED, dir_fd=here)
                names.append(name)
            else:
                there = os.open("..", OPENED, dir_fd=here)
            os.close(here)
            here = there
            if name is None:
                os.rmdir(names.pop(), dir_fd=here)
    finally:
        os.close(here)


def _without_files(here: int) -> str | None:
    """Removes files until a directory comes; its name. None: nothing is left."""
    removed = True
    while removed:
        removed = False
        with os.scandir(here) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    return entry.name
                os.unlink(entry.name, dir_fd=here)
                removed = True
    return None
