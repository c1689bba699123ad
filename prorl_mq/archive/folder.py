"""The files of one run: numbered, each whole, and each number given once.

A file is written beside its name, synced, and linked to the next number; the link fails where somebody else was faster.
So of two writers that have seen the same files, one gets the number: the other sees that file, and leaves out what it
holds. The newest file is never removed, so that no number comes twice. All of this waits for a file system: call it in
a thread.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.private_files import folder_name, make_folders, private, sync

NEW: Final = ".new-"  # begins the name of a file that is being written
KEEP: Final = ".keep.json"  # how long the run's files are kept
SUFFIX: Final = ".parquet"
STALE_S: Final = 3600.0  # a file that was begun so long ago is finished by nobody
# A writer gives up a file that takes longer, and no file goes that is younger than the second: so one that hangs cannot
# take a number that others have had.
WRITE_S: Final = 300.0
YOUNG_S: Final = 600.0


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of what is kept of a run; beside its files, since a run's settings go with the run."""

    days: int
    bytes: int


class StoredFile(NamedTuple):
    """One file of a run."""

    number: int
    path: Path
    bytes: int
    at: float  # seconds since the epoch, by the file system's clock


class RunFolder:
    """The folder of one run, whether it is there or not. The archive's own directory is never made here."""

    def __init__(self, directory: Path, namespace: str, tenant: str, run: str) -> None:
        self._root = directory
        self.path = directory / folder_name(namespace) / folder_name(tenant) / folder_name(run)

    def files(self) -> list[StoredFile]:
        """Every file, the oldest first. Others than ours are left out."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.partition(".")
                if dot + suffix == SUFFIX and stem.isdecimal():
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat()
                        found.append(StoredFile(int(stem), Path(entry.path), about.st_size, about.st_mtime))
        return sorted(found)

    def commit(self, number: int, write: Callable[[IO[bytes]], None]) -> bool:
        """Adds a file under a number; False if that number is taken. Raises `OSError`; then nothing was added."""
        give_up = monotonic() + WRITE_S
        self._make()
        new = self.path / f"{NEW}{secrets.token_hex(8)}"
        try:
            with open(new, "xb", opener=private) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if monotonic() > give_up:
                raise TimeoutError(f"{self.path}: one file has taken over {WRITE_S:g} s")
            taken = not _linked(new, self.path / f"{number:08d}{SUFFIX}")
        finally:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
        sync(self.path)
        return not taken

    def keeping(self) -> Keeping | None:
        """Limits of what is kept of it; None where nobody has said."""
        try:
            return msgspec.json.decode((self.path / KEEP).read_bytes(), type=Keeping)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def keep(self, keeping: Keeping) -> None:
        """Says what is kept of it."""
        if self.keeping() == keeping:
            return
        self._make()
        new = self.path / f"{NEW}{secrets.token_hex(8)}"
        try:
            new.write_bytes(msgspec.json.encode(keeping))
            new.replace(self.path / KEEP)
        finally:
            new.unlink(missing_ok=True)

    def prune(self, keeping: Keeping, now: float) -> list[StoredFile]:
        """Removes the files that are too old or too many, but for the newest one: which. `now` as files are dated."""
        files = self.files()
        gone, held = [], sum(each.bytes for each in files)
        for each in files[:-1]:
            if each.at > now - YOUNG_S or (each.at >= now - keeping.days * 86_400 and held <= keeping.bytes):
                break
            each.path.unlink(missing_ok=True)
            held -= each.bytes
            gone.append(each)
        return gone

    def tidy(self, now: float) -> None:
        """Removes what killed writers have left."""
        with contextlib.suppress(FileNotFoundError):
            for left in self.path.glob(f"{NEW}*"):
                with contextlib.suppress(FileNotFoundError):
                    if left.stat().st_mtime < now - STALE_S:
                        left.unlink()

    def _make(self) -> None:
        """Makes the folder and those above it. Raises `FileNotFoundError` where the archive's directory is not there: a
        file system that is not mounted.
        """
        if not self.path.is_dir():
            tenant = self.path.parent
            make_folders((tenant.parent, tenant, self.path))


def runs(directory: Path, namespace: str, tenant: str | None = None) -> list[tuple[str, str]]:
    """Tenant and name of every run that has a folder, in order; `tenant`: only its own."""
    root = directory / folder_name(namespace)
    tenants = _folders(root) if tenant is None else [root / folder_name(tenant)]
    return sorted((unquote(each.name), unquote(run.name)) for each in tenants for run in _folders(each))


def _linked(new: Path, path: Path) -> bool:
    try:
        os.link(new, path)
    except FileExistsError:
        return new.stat().st_nlink > 1  # over NFS a link whose reply was lost is made again, and is there already
    return True


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
