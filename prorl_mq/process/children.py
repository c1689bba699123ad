"""Child processes that end with their owner, and are started again when they end too early."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.errors import ProrlError

Say = Callable[[str], None]
FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
STEADY_S: Final = 60.0  # a child that has lived so long starts again without the waits of its earlier ends
SAID_BYTES: Final = 1200


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program. Its output goes to `log`, or where its owner's goes. `death_signal`: sent to it if the owner dies."""

    name: str
    argv: Sequence[str]
    log: Path | None = None
    env: Mapping[str, str] = {}
    death_signal: int = signal.SIGKILL


class Guard:
    """The process of `prorl_mq.process.guard`: it ends what is left when this process has been killed. `shared`: there
    are others' sandboxes in the state directory `swept`, too, and who ends well leaves its own to them.
    """

    def __init__(self, swept: Path | None, *, shared: bool = False) -> None:
        self._shared = shared
        argv = [sys.executable, "-P", "-m", "prorl_mq.process.guard"]
        argv += [str(swept), *(["shared"] if shared else [])] if swept else []
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, sign: str, pgid: int) -> None:
        """`+` for a group that was started, `-` for one that has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard; the work continues
            self._process.stdin.write(f"{sign}{pgid}\n".encode())

    async def aclose(self) -> None:
        """Lets it clean up, and waits for it."""
        assert self._process.stdin is not None
        if self._shared:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b".\n")
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait)


class Child:
    """One program. `start` it, `keep` it in a task; cancel that, then `stop`."""

    def __init__(self, program: Program, *, say: Say, guard: Guard) -> None:
        self.program = program
        self._say = say
        self._guard = guard
        self._process: asyncio.subprocess.Process | None = None
        self._group: int | None = None  # its process group, until that is known to be gone
        self._ending = False
        self._log_from = 0  # where this process's part of the log begins

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def ended(self) -> int | None:
        """The exit code of a process that has ended."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """From the main thread only: the kernel ends the child with the thread that started it."""
        with contextlib.ExitStack() as stack:
            log = None
            if self.program.log is not None:
                log = stack.enter_context(_log_of(self.program.log))
                self._log_from = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self.program.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.program.env},
                start_new_session=True,
                preexec_fn=_end_with_owner(self.program.death_signal),
            )
        self._group = self._process.pid
        self._guard.tell("+", self._group)

    async def keep(self, restarted: Callable[[], Awaitable[None]] | None = None) -> None:
        """Starts the program again whenever it ends, until this is cancelled; `restarted` runs after each start."""
        wait_s = FIRST_WAIT_S
        while True:
            began = monotonic()
            await self._over()
            if self._ending:
                return
            wait_s = FIRST_WAIT_S if monotonic() - began > STEADY_S else wait_s
            self._say(f"{self.obituary()}\nit starts again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            try:
                await self.start()
                if restarted is not None:
                    await restarted()
            except (ProrlError, OSError) as error:
                self._say(f"{self.program.name}: {error}")

    def obituary(self) -> str:
        """The end of the process, and its last words."""
        code = self.ended or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if self.program.log is None:
            return f"{self.program.name} {how}"
        said = "".join(f"\n    {line}" for line in self.last_lines(12))
        return f"{self.program.name} {how}; the end of {self.program.log}:{said}"

    def last_lines(self, count: int) -> list[str]:
        """The end of its log, without what earlier processes have left there."""
        told = self.program.log.read_bytes()[self._log_from :][-SAID_BYTES:] if self.program.log is not None else b""
        return told.decode(errors="replace").strip().splitlines()[-count:]

    async def wait(self) -> int:
        """Its exit code, once it and what it left behind have ended."""
        await self._over()
        return self.ended or 0

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL for the whole group after the grace time. Idempotent."""
        self._ending = True
        if self._process is None:
            return
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self._over()
        except TimeoutError:
            self._say(f"{self.program.name} has not ended within {grace_s:g} s and is killed")
            self.kill()
            await self._over()

    def kill(self) -> None:
        """SIGKILL for the process and what it started."""
        self._ending = True
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)

    async def _over(self) -> None:
        assert self._process is not None
        process = self._process
        await process.wait()
        if self._group == process.pid:
            self._group = None  # its number may soon be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind
            self._guard.tell("-", process.pid)


def _log_of(path: Path) -> IO[bytes]:
    """Its user's alone, also where an earlier release has left it: errors quote answers, backends log prompts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = path.open("ab")
    os.fchmod(log.fileno(), 0o600)
    return log


def _end_with_owner(number: int) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl, owner = ctypes.CDLL(None).prctl, os.getpid()

    def in_the_child() -> None:
        prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != owner:
            os._exit(1)

    return in_the_child
