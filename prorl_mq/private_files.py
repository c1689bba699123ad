"""Files for their owner alone, below a directory that an operator makes and a file system may have lost.

All of this waits for a file system: call it in a thread.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote


def folder_name(name: str) -> str:
    """A name as that of one folder, whatever it is made of; `urllib.parse.unquote` gives it back."""
    if not name:
        raise ValueError("a folder of a namespace, a tenant or a run has its name, and this one has none")
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def private(path: str, flags: int) -> int:
    """An opener for `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def sync(folder: Path) -> None:
    """Returns when the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(folders: Iterable[Path]) -> None:
    """Makes folders that are not there, the outermost first. Raises `FileNotFoundError` where the directory that they
    begin in is not there: a file system that is not mounted.
    """
    for each in folders:
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=0o700)
        sync(each.parent)


def time_there(directory: Path) -> float:
    """The time by the clock that files are dated with, that of the file system's server. Raises `OSError`.

    It is read off the directory, which takes no room: a full disk is what removing old files is most needed on.
    """
    os.utime(directory)
    return directory.stat().st_mtime
