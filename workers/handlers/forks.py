"""The door to a scorer that runs in a confined process of its own, one fork for each request.

Some scorers evaluate the answer as Python or hand it to a computer algebra system, and the answer is the policy's: it
may hang, take all memory, or do what an answer should not. That then costs its own fork, and reaches nothing: the
process has no network, no writable file, and sees no other process. It is no worker that dies.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import TypeVar

import msgspec

from prorl_mq.schema.faults import Cause
from sandbox.host.unprivileged import identity
from sandbox.isolators.confine import confined
from workers.handlers import clocks
from workers.handlers.clocks import AskTime
from workers.handlers.forks_process import LATE

_T = TypeVar("_T", bound=msgspec.Struct)
_LATE = re.compile(re.escape(LATE) + rb"(\d{1,9}\.\d{3})\n")
UNCONFINED = "PRORL_SCORERS"  # "unconfined": by name, for a host without bubblewrap
_STARTING_S = 300.0  # for the imports, before the first reply; on a busy node they take minutes
_PATIENT_S = 240  # of wall time, at most: EVAL's budget must hold it
_ENDING_S = 1.0  # between the end of a fork and that of the process, if the answer ended both


class ScorerFailed(Exception):
    """The process of a scorer does not work: the answer is not to blame."""

    retryable = True
    cause = Cause.NODE


class ForkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request."""

    cpu_s: int = 20
    memory_bytes: int = 4 << 30  # of address space


class Forks:
    """Owns the process: started with the first request, ended by `close`, or with this object or its process.

    `module` is one of ours with `load()`, called once, and `reply_to(line)`, called in a fork for each request.
    """

    def __init__(self, module: str, limits: ForkLimits | None = None) -> None:
        self._module = module
        self._limits = limits or ForkLimits()
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._socket = ""

    async def ask(self, line: bytes, given: AskTime | None = None) -> bytes | None:
        """One line for one line; None when the fork died over it, or `given` was over. Raises `ScorerFailed`."""
        given = given or AskTime()
        wall_s, had_s = clocks.WALL * self._limits.cpu_s, given.had_s
        given.own_s = wall_s
        reply = await self._asked(line, wall_s, given)
        late = _LATE.fullmatch(reply or b"")
        if late and clocks.was_starved(waited_s=float(late[1]), wall_s=min(wall_s, given.had_s - had_s)):
            given.starved = True
            reply = await self._asked(line, min(clocks.PATIENT_WALL * self._limits.cpu_s, _PATIENT_S), given)
        return None if reply is None or reply.startswith(LATE) else reply

    async def _asked(self, line: bytes, wall_s: int, given: AskTime) -> bytes | None:
        """The reply, or a line that says how long a late fork waited for a CPU."""
        given.cut = not given.left_s
        if given.cut:
            return None
        process = await self._running()
        reply = await self._exchange(line, wall_s, given)
        given.cut = not given.left_s and (not reply or reply.startswith(LATE))
        if reply:
            return reply
        if await asyncio.to_thread(_has_ended, process):  # and took every fork along, whoever is to blame
            raise ScorerFailed(f"the process of {self._module} ended while it scored")
        return None

    async def ask_as(self, reply: type[_T], request: msgspec.Struct, given: AskTime | None = None) -> _T | None:
        """The same with JSON of these types. What is none was written by the answer, in the scorer's place."""
        line = await self.ask(msgspec.json.encode(request), given)
        try:
            return None if line is None else msgspec.json.decode(line, type=reply)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None

    async def _running(self) -> subprocess.Popen[bytes]:
        async with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._process = self._started()  # in this thread: with the one that starts it, its confinement ends it
            return self._process

    async def _exchange(self, line: bytes, own_s: int, given: AskTime) -> bytes:
        """The reply; nothing of a fork that was ready and gave none in time, or died before it had read everything."""
        reader, writer = await self._ready()
        began, wall_s = time.monotonic(), min(own_s, given.left_s)
        try:
            async with asyncio.timeout(wall_s + given.ending_s):
                writer.write(b"%.3f %b\n" % (wall_s, line))
                await writer.drain()
                return await reader.readline()
        except (ConnectionError, ValueError, TimeoutError):
            return b""
        finally:
            given.had_s += time.monotonic() - began
            writer.close()

    async def _ready(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a fork that is ready. Raises `ScorerFailed`: nothing was asked yet."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_STARTING_S):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=1 << 24)
                if await reader.readline() == b"ready\n":
                    return reader, writer
        except (OSError, TimeoutError) as error:
            told = f"did not start to score: {type(error).__name__}: {error}"
        else:
            told = f"ended while it started; try `python -m {RUNNER}`"
        if writer is not None:
            writer.close()
        raise ScorerFailed(f"the process of {self._module} {told}")

    def close(self) -> None:
        """Ends the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _started(self) -> subprocess.Popen[bytes]:
        self.close()
        self._directory = tempfile.TemporaryDirectory(prefix="scorer-")
        self._socket = str(Path(self._directory.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._socket)
            listener.listen(128)
            limits = self._limits
            alone = os.environ.get(UNCONFINED) != "unconfined"
            words = [listener.fileno(), self._module, limits.cpu_s, limits.memory_bytes, *(identity() if alone else ())]
            argv = [sys.executable, "-W", "ignore", "-m", RUNNER, *map(str, words)]
            process = subprocess.Popen(
                confined(argv, _packages(self._module)) if alone else argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=(listener.fileno(),),
                cwd=os.sep,
            )
        weakref.finalize(self, _end, process)
        return process


RUNNER = "workers.handlers.forks_process"


def _packages(module: str) -> set[str]:
    """Those of ours that it may import: the API, Slurm and tests lie beside them."""
    return {"prorl_mq", "sandbox", "workers", module.partition(".")[0]}


def _environment() -> dict[str, str]:
    """Nothing of the worker's goes along: it may hold passwords. A fixed hash seed makes questions repeatable."""
    places = [str(Path(place).absolute()) for place in sys.path if place]
    return {"PATH": os.defpath, "HOME": os.sep, "PYTHONPATH": os.pathsep.join(places), "PYTHONHASHSEED": "0"}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.send_signal(signal.SIGKILL)
    process.wait()
