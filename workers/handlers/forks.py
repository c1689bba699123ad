"""The door to a scorer that runs in a confined process of its own, one fork for each request.

Some scorers evaluate the answer as Python or hand it to a computer algebra system, and the answer is the policy's: it
may hang, take all memory, or do what an answer should not. That then costs its own fork, and reaches nothing: the
process has no network, no writable file, and sees no other process. It is no worker that dies.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import msgspec

from sandbox.confinement import confined

UNCONFINED = "PRORL_SCORERS"  # "unconfined": by name, for a host without bubblewrap
_STARTING_S = 60.0  # for the imports, before the first reply


class ScorerFailed(Exception):
    """The process of a scorer does not work: the answer is not to blame."""

    retryable = True


class ForkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request may take."""

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

    async def ask(self, line: bytes) -> bytes | None:
        """One line for one line; None when the fork died over it. Raises `ScorerFailed`."""
        async with self._starting:
            if self._process is None or self._process.poll() is not None:
                await asyncio.to_thread(self._start)
        try:
            async with asyncio.timeout(_STARTING_S + 3 * self._limits.cpu_s):
                return await self._exchange(line + b"\n") or None
        except (OSError, TimeoutError) as error:
            raise ScorerFailed(
                f"the process of {self._module} did not reply: {type(error).__name__}: {error}"
            ) from error

    async def _exchange(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=1 << 24)
        try:
            if await reader.readline() != b"ready\n":
                raise ScorerFailed(f"the process of {self._module} ended while it started; try `python -m {RUNNER}`")
            try:
                writer.write(line)
                await writer.drain()
                return await reader.readline()
            except ConnectionError:
                return b""  # the fork died before it had read everything
        finally:
            writer.close()

    def close(self) -> None:
        """Ends the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _start(self) -> None:
        self.close()
        self._directory = tempfile.TemporaryDirectory(prefix="scorer-")
        self._socket = str(Path(self._directory.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._socket)
            listener.listen(128)
            words = [listener.fileno(), self._module, self._limits.cpu_s, self._limits.memory_bytes]
            argv = [sys.executable, "-W", "ignore", "-m", RUNNER, *map(str, words)]
            self._process = subprocess.Popen(
                argv if os.environ.get(UNCONFINED) == "unconfined" else confined(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=(listener.fileno(),),
                cwd=os.sep,
            )
        weakref.finalize(self, _end, self._process)


RUNNER = "workers.handlers.forks_process"


def _environment() -> dict[str, str]:
    """Nothing of the worker's goes along: it may hold passwords. A fixed hash seed makes questions repeatable."""
    places = [str(Path(place).absolute()) for place in sys.path if place]
    return {"PATH": os.defpath, "HOME": os.sep, "PYTHONPATH": os.pathsep.join(places), "PYTHONHASHSEED": "0"}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.send_signal(signal.SIGKILL)
    process.wait()
