"""The process of `examples.train.learner`, as its trainer speaks to it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

ROOT = Path(__file__).resolve().parents[2]
LINE_BYTES = 1 << 20


class LearnerFailed(Exception):
    """It ended. What it said stands on standard error."""


class LearnerProcess:
    """Runs in an environment that has torch. One request at a time."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        argv = [str(self._python), "-m", "examples.train.learner"]
        self._process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=pipe, stdout=pipe, limit=LINE_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def load(self, directory: Path, *, seed: int) -> None:
        await self._ask({"load": str(directory), "seed": seed})

    async def learn(self, samples: Sequence[dict[str, Any]]) -> dict[str, float]:
        """One update. The answer's `max_difference` is over `compared_tokens`."""
        learnt: dict[str, float] = await self._ask({"learn": samples})
        return learnt

    async def save(self, directory: Path, *, version: int) -> None:
        await self._ask({"save": str(directory), "version": str(version)})

    async def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        await self._process.stdin.drain()
        answer = await self._process.stdout.readline()
        if not answer:
            raise LearnerFailed(f"the learner ended with code {await self._process.wait()}")
        return msgspec.json.decode(answer)
