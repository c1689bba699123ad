"""One supervisor at a time: a lock on shared storage with a fence, the term.

Whoever takes the lock raises the term by one. `acting` compares the term under a lock of the file system before
anything is asked of Slurm, so that a supervisor that stood still while another took its place acts no more. Ages are
differences between times that the file server gave, so that clocks of nodes do not count. Redis may be away.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.errors import ProrlError
from prorl_mq.process.crews.crew import say
from slurm import commands

LOOK_S: Final = 0.05
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE: Final = Path("/proc/self/ns/pid")
BUSY_S: Final = 10.0  # how long another that acts is waited for


class Superseded(ProrlError):
    """Another supervisor has taken the lock: nothing was asked of Slurm."""


class Busy(ProrlError):
    """Somebody else submits or cancels jobs of the deployment."""


class Supervisor(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the lock. `holder` is empty after one that has resigned; `job` where it is no job. `process` is
    that of the holder, as `place_of` has it. While the chain of jobs is `ended`, none of them takes it; nor does one by
    hand that was there before the term `ended_at`.
    """

    term: int = 0
    holder: str = ""
    job: str = ""
    process: str = ""
    ended: bool = False
    ended_at: int = 0
    low_s: Mapping[str, float] = {}  # array → for how long it has had more tasks than it needs


def place_of(pid: int) -> str:
    """A process as no other is called: the boot of its host, its name space of processes, its number."""
    return f"{BOOT.read_text().strip()} {NAMESPACE.readlink()} {pid}"


def gone(process: str) -> bool:
    """True for one of this host, in this name space, that has ended; of others that is not known."""
    *_, pid = process.split(" ")
    return pid.isdecimal() and process == place_of(int(pid)) and not Path("/proc", pid).exists()


@contextlib.asynccontextmanager
async def exclusive(file: Path) -> AsyncIterator[int]:
    """Holds the file, by its descriptor, for whoever changes the deployment's jobs. Raises `Busy`."""
    deadline = monotonic() + BUSY_S
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.open("a") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > deadline:
                    raise Busy(f"another process has held {file} for {BUSY_S:g} s: wait for it, or end it") from None
            await asyncio.sleep(LOOK_S)
        yield held.fileno()


class WatchLock:
    """The lock of one supervisor of a deployment. `guard` is the file that submitting processes hold."""

    def __init__(self, directory: Path, guard: Path, *, holder: str, job: str = "", stale_s: float) -> None:
        self._state = directory / "supervisor.json"
        self._guard = guard
        self._holder = holder
        self._job = job
        self._stale_s = stale_s
        self._term = -1  # of none
        self._first = -1  # the term that it found
        self.ended = False  # by somebody's `drain` or `cancel`

    async def hold(self) -> Supervisor | None:
        """Takes or renews it: what the holder before left. None where another supervisor is active."""
        async with exclusive(self._guard) as guard:
            found = self.read()
            ours = self._ours(found)
            self._first = found.term if self._first < 0 else self._first
            if not ours and found.holder and not await self._over(found, guard):
                return None
            self.ended = found.ended if self._job else found.ended_at > self._first
            if self.ended:
                return None
            self._term = found.term + (not ours)
            mine = msgspec.structs.replace(
                found, term=self._term, holder=self._holder, job=self._job, process=place_of(os.getpid())
            )
            if mine != found:
                self._write(mine)
            else:
                os.utime(self._state)  # which a full disk allows
        return found

    @contextlib.asynccontextmanager
    async def acting(self) -> AsyncIterator[None]:
        """Commands to Slurm within this context come from the holder alone. Raises `Superseded`."""
        async with exclusive(self._guard):
            if not self._ours(found := self.read()):
                raise Superseded(f"{found.holder or 'another process'} has taken over (term {found.term}): standing by")
            yield

    async def leave(self, low_s: Mapping[str, float]) -> None:
        """Ends its hold, so that the next one does not wait for it."""
        async with exclusive(self._guard):
            if self._ours(found := self.read()):
                self._write(msgspec.structs.replace(found, holder="", job="", process="", low_s=low_s))

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[Supervisor]:
        """Ends the chain: whoever had the lock, which is yielded, acts no more, and neither jobs of the chain nor
        supervisors by hand that are there now take it before `reopen`.
        """
        async with exclusive(self._guard):
            found = self.read()
            self._write(Supervisor(term=found.term + 1, ended=True, ended_at=found.term + 1))
            yield found

    def reopen(self, *, chain: bool) -> None:
        """Lets supervisors by hand take it again, and jobs of the chain; the guard is held."""
        found = self.read()
        after = msgspec.structs.replace(found, ended=found.ended and not chain, ended_at=0)
        if after != found:
            self._write(after)

    def read(self) -> Supervisor:
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=Supervisor)
        except FileNotFoundError:
            return Supervisor()
        except msgspec.MsgspecError as error:
            say(f"{self._state} cannot be read ({error}): its terms begin again")
            return Supervisor()

    def _ours(self, found: Supervisor) -> bool:
        """The term alone does not say it: after a file that was lost or unreadable, terms begin again."""
        return (found.term, found.holder) == (self._term, self._holder)

    async def _over(self, found: Supervisor, guard: int) -> bool:
        """It has said nothing for long, its process or its job has ended, or it was an earlier run of this job, which
        begins only now: of two runs the older one takes nothing back.
        """
        if gone(found.process) or (found.job and found.job == self._job and self._term < 0):
            return True
        with contextlib.suppress(commands.SlurmRefused):  # then its age alone counts
            if found.job and not await commands.runs(found.job):
                return True
        os.utime(guard)
        return os.fstat(guard).st_mtime - self._state.stat().st_mtime > self._stale_s

    def _write(self, state: Supervisor) -> None:
        new = self._state.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._state)
        os.utime(self._state)
