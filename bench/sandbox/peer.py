"""Contenders that run in a process and an environment of their own, and time themselves there."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.redis_server import die_with_parent
from bench.sandbox.contender import ContenderMissing, Measure, Samples, Setting
from bench.sandbox.peer_loop import ANSWER

ROOT = Path(__file__).resolve().parents[2]
START_S, ANSWER_S, END_S = 120.0, 120.0, 5.0
LINE_BYTES = 1 << 20


class PeerFailed(Exception):
    """It ended, or gave no answer; the message has its last words."""


class Peer:
    """`python -m bench.sandbox.MODULE ARGUMENTS...` by the interpreter of an environment."""

    def __init__(self, module: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self._module, self._process, self._log = module, process, log

    async def ask(self, count: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n".encode())
        return await self.answer(ANSWER_S)

    async def answer(self, timeout_s: float) -> list[float]:
        """The next answer; other lines that a library prints are skipped."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                while line := (await self._process.stdout.readline()).decode("utf-8", "replace"):
                    if line.startswith(ANSWER):
                        return [float(each) for each in json.loads(line.removeprefix(ANSWER))]
        except TimeoutError:
            raise PeerFailed(f"{self._module} gave no answer within {timeout_s:.0f} s: {self._words()}") from None
        raise PeerFailed(f"{self._module} ended: {self._words()}")

    def _words(self) -> str:
        """Its last ones."""
        return next(iter(self._log.read_text(errors="replace").strip().splitlines()[::-1]), "it said nothing")

    async def close(self) -> None:
        """End of input is its signal to leave."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def peer(
    setting: Setting, environment: str, module: str, arguments: Sequence[str], quantity: str
) -> AsyncIterator[Measure]:
    """Raises `ContenderMissing` where its environment was not made."""
    python = setting.venvs.absolute() / environment / "bin" / "python"
    if not python.exists():
        raise ContenderMissing(f"{python} is missing: bench/venvs.sh makes it where its packages can be installed")
    log = setting.scratch / f"{module}-{len(list(setting.scratch.iterdir()))}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            python, "-m", f"bench.sandbox.{module}", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=setting.scratch,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
            preexec_fn=die_with_parent, limit=LINE_BYTES,
        )  # fmt: skip
    found = Peer(module, process, log)

    async def measure(count: int) -> Samples:
        return {quantity: await found.ask(count)}

    try:
        await found.answer(START_S)
        yield measure
    finally:
        await found.close()
