"""The data of Redis on shared storage: which directory counts, who serves it, and who may take over.

Each replica has a directory of its own. `current` names the one that counts: it is written after a hand-over is
complete and before anybody learns the new address, so that no write is acknowledged that this directory does not get.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.redis_server import locked
from slurm import commands

COPY: Final = "copy-"
STORED: Final = ("appendonlydir", "dump.rdb")
OLD: Final = (*STORED, "redis.log")  # of data that lie in `shared`/redis itself


class Successor(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that has everything: of which job, where, and its directory's name."""

    job: str
    host: str
    port: int
    directory: str


class RedisData:
    """`shared`/redis, as one job sees it."""

    def __init__(self, place: Path, job: str) -> None:
        self.place = place
        self._job = job
        self._next = place / "next.json"
        self._holder = place / "job"

    @property
    def current(self) -> Path:
        """The directory that counts: `shared`/redis itself until a first hand-over."""
        try:
            return self.place / (self.place / "current").read_text().strip()
        except FileNotFoundError:
            return self.place

    def counted(self) -> Path:
        """`current`, for a server or a removal. Raises `ConfigurationError` where it is not there, or nothing names the
        one of several directories that counts: an empty Redis would begin, and what it finds would be removed.
        """
        file, found = self.place / "current", self.current
        copies = ", ".join(sorted(each.parent.name for each in self.place.glob(f"{COPY}*/{STORED[0]}")))
        if file.exists():
            if found.is_dir() and found != self.place:
                return found
            lost = f"names {found}, which is not there" if found != self.place else "is empty"
        elif not copies or any((self.place / name).exists() for name in STORED):
            return found
        else:
            lost = "is missing"
        raise ConfigurationError(
            f"{file}, which says where the data of Redis are, {lost}: Redis is not started. There is "
            f"{copies or 'no copy'}. Bring it back from a backup, or write the name of the directory with the data to "
            f"{file}. To begin with no data, move everything in {self.place} away"
        )

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[str]:
        """Holds the data: yields an empty text, else why not. Who leaves without an error gives them back, so that the
        next job need not ask Slurm.
        """
        with contextlib.ExitStack() as stack:
            why = f"the Redis before this one uses {self.place}: this one starts when that one has ended"
            try:
                stack.enter_context(locked(self.place))
                if await self.free():
                    why = ""
            except ConfigurationError:
                pass
            except commands.SlurmRefused as refused:
                why = str(refused)
            yield why
            with contextlib.suppress(OSError):
                if not why and self._holder.read_text() == self._job:
                    self._holder.unlink()

    async def free(self) -> bool:
        """True where the job before has given the data back, or has ended as Slurm says: then they are this job's.
        Raises `SlurmRefused` where Slurm does not answer: they are not free.
        """
        before = self._holder.read_text() if self._holder.exists() else ""
        try:
            if before not in {"", self._job} and await commands.runs(before):
                return False
        except commands.SlurmRefused as refused:
            raise commands.SlurmRefused(
                f"it is not known whether job {before}, which has the data, has ended ({refused}): this one waits "
                f"until Slurm answers. If that job has ended, and its node is down or idle, remove {self._holder}"
            ) from None
        _written(self._holder, self._job.encode())
        return True

    def fresh(self) -> Path:
        """An empty directory for a replica."""
        directory = self.place / f"{COPY}{self._job}-{secrets.token_hex(4)}"
        directory.mkdir(parents=True, mode=0o700)
        return directory

    def discard(self, directory: Path) -> None:
        """Removes a replica's directory, unless it is the one that counts."""
        with contextlib.suppress(OSError):  # where that is not known, too
            if self.current != directory:
                shutil.rmtree(directory)

    def adopt(self, directory: Path) -> None:
        """Lets a replica's directory be the one that counts, and this job the one that serves."""
        _written(self._holder, self._job.encode())
        _written(self.place / "current", directory.name.encode())
        self._next.unlink(missing_ok=True)

    def announce(self, at: tuple[str, int] | None, directory: Path) -> None:
        """Offers a replica as the successor, or takes the offer back."""
        found = self.announced()
        if at is None:
            if found is not None and found.directory == directory.name:
                self._next.unlink(missing_ok=True)
            return
        mine = Successor(job=self._job, host=at[0], port=at[1], directory=directory.name)
        if found != mine:
            _written(self._next, msgspec.json.encode(mine))

    def announced(self) -> Successor | None:
        try:
            return msgspec.json.decode(self._next.read_bytes(), type=Successor)
        except (OSError, msgspec.MsgspecError):
            return None

    def tidy(self) -> None:
        """Removes what an earlier hand-over has left; the data are held. Raises as `counted`."""
        current, offer = self.counted(), self.announced()
        kept = {current.name, offer.directory if offer else ""}
        for directory in self.place.glob(f"{COPY}*"):
            if directory.name not in kept:
                shutil.rmtree(directory, ignore_errors=True)
        if current != self.place:
            for name in OLD:
                shutil.rmtree(self.place / name, ignore_errors=True)
                with contextlib.suppress(OSError):
                    (self.place / name).unlink()


def _written(file: Path, content: bytes) -> None:
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")  # of two that wait, both write
    try:
        with new.open("wb") as made:
            made.write(content)
            made.flush()
            os.fsync(made.fileno())
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise
