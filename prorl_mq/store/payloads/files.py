"""Payloads as files: `DIR/NAMESPACE/TENANT/ab/abcdef...`, named by the BLAKE2b digest of what they hold.

A file appears under its name whole: it is written beside it, synced, renamed, and its folder is synced. A writer always
writes and renames, also where a file of that name is there: so the file's time says when it was last put, and whoever
collects old files cannot take one that has just been put again. All of this waits for a file system: call it in a
thread.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from prorl_mq.private_files import folder_name, make_folders, private, sync, time_there
from prorl_mq.store.payloads.limits import SPARE_BYTES, SPARE_SHARE
from prorl_mq.store.payloads.name import PayloadFile

NEW: Final = ".new-"  # begins the name of a file that is being written
GONE: Final = ".gone-"  # begins the name of one that is being collected: `.gone-DIGEST-RANDOM`
OWNER: Final = ".owner"  # the name of a file in the namespace's folder
SHORTEST: Final = 2  # digits of a digest that name a folder


class PayloadDamaged(Exception):
    """A file is not what its name says; a network file system may show a part of one for a moment."""


class OldFile(NamedTuple):
    """A file that was put before some moment."""

    tenant: str
    digest: str


class Space(NamedTuple):
    """Bytes of a file system that one may write, of all that it has. A quota shows where the file system tells it."""

    free: int
    total: int

    @property
    def spare(self) -> int:
        """Bytes that may be written before only the part is left that is kept for what cannot be made again."""
        return self.free - min(int(self.total * SPARE_SHARE), SPARE_BYTES)

    def __str__(self) -> str:
        return f"{self.free / (1 << 30):.1f} of {self.total / (1 << 30):.1f} GiB are free"


class HeldFiles(NamedTuple):
    """Contents of a directory, counted. `whole` is false where the count stopped at its limit."""

    files: int
    bytes: int
    whole: bool


class PayloadFiles:
    """The payloads of one namespace below a directory that an operator or a deployment makes: it is never made here."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self.directory = directory
        self.hung_until = 0.0  # on this process's clock: until then, it is not asked for what Redis takes
        self.full_until = 0.0  # the same, of what can be done without
        self.seen = False  # by a writer: a directory that was there and is not is a fault
        self._root = directory / folder_name(namespace)

    @property
    def there(self) -> bool:
        """True if the directory is there now: without it, payloads stay in Redis."""
        return self.directory.is_dir()

    def path(self, tenant: str, name: PayloadFile) -> Path:
        return self._root / folder_name(tenant) / name.digest[:SHORTEST] / name.digest

    def write(self, tenant: str, data: bytes) -> PayloadFile:
        """Returns when the file is on disk under its name. Raises `OSError`; then there is none, or a whole one."""
        name = PayloadFile.of(data)
        path = self.path(tenant, name)
        self._make(path.parent)
        new = path.with_name(f"{NEW}{secrets.token_hex(8)}")
        try:
            with open(new, "xb", buffering=0, opener=private) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        sync(path.parent)
        return name

    def read(self, tenant: str, name: PayloadFile, *, again: bool = False) -> bytes:
        """The payload, compared with its name. Raises `FileNotFoundError`, `PayloadDamaged` or another `OSError`.

        `again`: its folder is opened first, since a network file system remembers that it has found no such file.
        """
        if again:
            with contextlib.suppress(OSError):
                os.close(os.open(self.path(tenant, name).parent, os.O_RDONLY | os.O_DIRECTORY))
        with open(self.path(tenant, name), "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PayloadDamaged("it is no regular file")
            data = file.read(name.size + 1)
        if len(data) != name.size:
            longer = "more than its" if len(data) > name.size else f"{len(data)} of its"
            raise PayloadDamaged(f"it has {longer} {name.size} bytes")
        if PayloadFile.of(data) != name:
            raise PayloadDamaged("its content is another than its name says")
        return data

    def fault(self, tenant: str, name: PayloadFile) -> str:
        """Fault of a file at first sight; empty if there is none. Its content is not read."""
        try:
            size = self.path(tenant, name).stat().st_size
        except OSError as error:
            return error.strerror or "cannot be looked at"
        return "" if size == name.size else f"has {size} of its {name.size} bytes"

    def probe(self) -> None:
        """Writes a file and removes it. Raises `OSError` where that cannot be done."""
        probe = self.directory / f"{NEW}{secrets.token_hex(8)}"
        try:
            with open(probe, "xb", opener=private) as file:
                file.write(b"0")
        finally:
            probe.unlink(missing_ok=True)

    def now(self) -> float:
        """The time by the clock that files are dated with. Raises `OSError`."""
        return time_there(self.directory)

    @property
    def owner_file(self) -> Path:
        """The file with the mark of the Redis data that name these files."""
        return self._root / OWNER

    def owner(self) -> str:
        """The mark that `own` has left first; empty where there is none."""
        try:
            return self.owner_file.read_text()
        except FileNotFoundError:
            return ""

    def own(self, mark: str) -> None:
        """Leaves a mark, unless there is one."""
        new = self.owner_file.with_name(f"{NEW}{secrets.token_hex(8)}")
        try:
            with open(new, "x", opener=private) as file:
                file.write(mark)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(new, self.owner_file)
        finally:
            new.unlink(missing_ok=True)
        sync(self._root)

    def folders(self) -> list[Path]:
        """Every folder that files lie in. A tenant has 256 at most."""
        return [folder for tenant in _within(self._root) for folder in _within(tenant)]

    def old(self, folder: Path, before: float) -> list[OldFile]:
        """Files of a folder that were put before a moment."""
        tenant = unquote(folder.parent.name)
        names = [entry.name for entry in _entries(folder) if entry.name.startswith(folder.name)]
        return [OldFile(tenant, name) for name in names if _dated(folder / name) < before]

    def tidy(self, folder: Path, before: float) -> None:
        """Removes what writers of that time have left unfinished; puts back what was left half collected."""
        for entry in _entries(folder):
            path = Path(entry.path)
            if entry.name.startswith(GONE):
                _put_back(path, folder / entry.name.removeprefix(GONE).partition("-")[0])
            elif entry.name.startswith(NEW) and _dated(path) < before:
                path.unlink(missing_ok=True)

    def take_away(self, old: OldFile, before: float) -> bool:
        """Removes a file, unless it was put again: it is moved aside first, so that the file whose time is looked at is
        the one that is removed.
        """
        path = self.path(old.tenant, PayloadFile(0, old.digest))
        if _dated(path) >= before:
            return False
        aside = path.with_name(f"{GONE}{old.digest}-{secrets.token_hex(4)}")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False
        if _dated(aside) >= before:
            _put_back(aside, path)
            return False
        aside.unlink(missing_ok=True)
        return True

    def remove(self, tenant: str, name: PayloadFile) -> None:
        """Removes a file that nobody else can name."""
        self.path(tenant, name).unlink(missing_ok=True)

    def space(self) -> Space:
        """The room of its file system. Raises `OSError`."""
        found = os.statvfs(self.directory)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def require_spare(self, size: int) -> None:
        """Raises `OSError` where a file of this size, which can be done without, would take room from others."""
        space = self.space()
        if space.spare < size:
            raise OSError(errno.ENOSPC, f"{self.directory} is almost full: {space}")

    def held(self, *, at_most: int) -> HeldFiles:
        """A count of the files of every tenant, which ends where there are too many."""
        files = size = 0
        for folder in self.folders():
            for entry in _entries(folder):
                if files == at_most:
                    return HeldFiles(files, size, whole=False)
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_size
                    files += 1
        return HeldFiles(files, size, whole=True)

    def _make(self, folder: Path) -> None:
        """Makes a folder and those above it, up to the directory, for its owner alone. Raises `FileNotFoundError` where
        that is not there: a file system that is not mounted.
        """
        if not folder.is_dir():
            make_folders((self._root, folder.parent, folder))


def _at_once(path: str, flags: int) -> int:
    """Opens without waiting for whoever writes into a pipe."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def _within(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from entries


def _dated(path: Path) -> float:
    """When a file was put; later than any moment where there is none."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _put_back(aside: Path, path: Path) -> None:
    """Under its name again, unless it is there: then it holds the same."""
    with contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
