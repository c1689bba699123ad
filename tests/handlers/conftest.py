"""Task families rehearsed with real sandboxes, and what their suites came to as a table."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.protocol import SandboxProvider
from tests.handlers.suite import KEPT, Kept, rows, table
from workers.handler import Handler, Ran, Score
from workers.rehearsal.stages import RUN_S, Rehearsal, rehearsing, task_of


class Stages:
    """Takes one payload through the three stages. `keep` adds a score to the table of `make test-tasks`."""

    def __init__(self, provider: SandboxProvider, rehearsal: Rehearsal, keep: Callable[[Kept], None]) -> None:
        self.provider, self.rehearsal, self.keep = provider, rehearsal, keep

    async def rollout(
        self, handler: Handler, payload: dict[str, Any], texts: list[str], *, run_s: float = RUN_S
    ) -> tuple[Ran, Score]:
        return await self.rehearsal.rollout(handler, task_of(handler, payload), texts, run_s=run_s)

    async def score(self, handler: Handler, payload: dict[str, Any], export: Any) -> Score:
        return await self.rehearsal.score(handler, task_of(handler, payload), Ran(trajectory=None, export=export))


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    try:
        made = BubblewrapProvider(node="test", state_dir=tmp_path / "state")
    except SandboxUnavailable as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield made
    await made.aclose()


@pytest.fixture
async def stages(provider: SandboxProvider, record_property: Callable[[str, object], None]) -> AsyncIterator[Stages]:
    async with rehearsing(provider) as rehearsal:
        yield Stages(provider, rehearsal, lambda kept: record_property(KEPT, tuple(kept)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What `make test-tasks` is for, from the reports of all test processes."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    kept = [Kept(*value) for report in reports for name, value in report.user_properties if name == KEPT]
    if kept:
        terminalreporter.section("task families")
        terminalreporter.write(table(rows(kept)) + "\n")
