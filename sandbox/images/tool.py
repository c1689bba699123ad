"""Calls of `sandbox.images.spython_program`, each in a process that ends when its caller is cancelled."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from sandbox.errors import SandboxError

WORDS_BYTES = 4000


async def call(words: Sequence[str], command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """The program's output; `command` starts Apptainer. Raises `SandboxError` with its last words if it failed."""
    argv = [sys.executable, "-P", "-m", "sandbox.images.spython_program", *words, "--", *command]
    process = await asyncio.create_subprocess_exec(
        *argv, env={**os.environ, **(environment or {})}, start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await communicated(process)
    text = said[-WORDS_BYTES:].decode("utf-8", "replace").strip()
    if process.returncode != 0:
        raise SandboxError(text or f"{words[0]} ended with exit code {process.returncode}")
    return text


async def communicated(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """The output and the errors of a process that leads a session. Where this is cancelled, all of that is killed."""
    try:
        return await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
        raise
