"""Fake backends as processes of their own, which a benchmark starts, slows down and kills."""

import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from bench.redis_server import die_with_parent


class Fleet:
    """The processes. `token_ms`: how long one sampled token takes on each of them; `seats`: calls at a time."""

    def __init__(self, count: int, *, token_ms: float, seats: int | None = None) -> None:
        self.token_ms = token_ms
        self._seats = seats
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._http = httpx.Client(trust_env=False, timeout=30.0)
        self._count = count

    def __enter__(self) -> Self:
        self.start(self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for address in list(self.processes):
            self.kill(address)
        self._http.close()

    @property
    def addresses(self) -> list[str]:
        return list(self.processes)

    def start(self, count: int) -> list[str]:
        """Their addresses."""
        argv = [sys.executable, "-m", "prorl_mq.testing.fake_backend", "--token-ms", str(self.token_ms)]
        argv += [] if self._seats is None else ["--slots", str(self._seats)]
        made = [
            subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)  # noqa: PLW1509
            for _ in range(count)
        ]
        fresh = {process.stdout.readline().strip(): process for process in made if process.stdout}
        self.processes |= fresh
        return list(fresh)

    def kill(self, address: str) -> None:
        process = self.processes.pop(address)
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()

    def slow(self, address: str, factor: float) -> None:
        self._http.post(f"{address}/fake", json={"token_ms": self.token_ms * factor}).raise_for_status()

    def hit_ratio(self, before: Sequence[dict[str, Any]]) -> float:
        """Prompt tokens found in prefix caches since `before`, of all."""
        now = self.told()
        hits = sum(each["hit_tokens"] for each in now) - sum(each["hit_tokens"] for each in before)
        asked = sum(each["prompt_tokens"] for each in now) - sum(each["prompt_tokens"] for each in before)
        return hits / asked if asked else 0.0

    def told(self) -> list[dict[str, Any]]:
        """What each backend says of itself."""
        return [self._http.get(f"{address}/fake").json() for address in self.addresses]
