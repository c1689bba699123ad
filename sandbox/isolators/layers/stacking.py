"""The stacker (`sandbox.isolators.layers.stacker`) as a process of this one, started when it is first asked."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence

import msgspec

from sandbox.errors import CannotCopy
from sandbox.host import unprivileged
from sandbox.isolators.payload import compiled, joined

ANSWER_S = 10.0
MODULES = ("server/libc", "isolators/layers/stacker")


class Stacked(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer."""

    sealed: int = 0  # bytes that were sealed now
    error: str = ""
    spoilt: bool = False  # the target has a part of the source's files


class Stacker:
    """One request at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()

    async def warm(self) -> None:
        """Raises `CannotCopy` where it does not start."""
        async with self._asking:
            await self._running()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            try:
                self._process = await _started()
            except OSError as error:
                raise CannotCopy(f"the program that lays layers does not start: {error}") from error
        return self._process

    async def stack(self, source: int, target: int, places: Sequence[str]) -> Stacked:
        """Seals the files of the sandbox with the first process `source`, and shows them in the other one's places."""
        async with self._asking:
            process = await self._running()
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await _asked(process, {"source": source, "target": target, "places": places})
            except BaseException as error:
                await self._end()  # what it still says is no answer to the next request
                if not isinstance(error, OSError | TimeoutError | msgspec.DecodeError):
                    raise
                why = str(error) or f"it took {ANSWER_S:.0f} s"
                return Stacked(error=f"the program that lays layers gave no answer: {why}", spoilt=True)

    async def aclose(self) -> None:
        async with self._asking:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _asked(process: asyncio.subprocess.Process, request: dict[str, object]) -> Stacked:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    await process.stdin.drain()
    return msgspec.json.decode(await process.stdout.readline(), type=Stacked)


async def _started() -> asyncio.subprocess.Process:
    """As this user, who can read the interpreter; it becomes the sandboxes' user itself. It ends with its input."""
    code = await asyncio.to_thread(compiled, joined(MODULES), sys.executable)
    file = os.memfd_create("stacker", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(code)
        words = map(str, unprivileged.identity())
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", f"/proc/self/fd/{file}", *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, pass_fds=(file,), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(file)
