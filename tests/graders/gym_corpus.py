"""reasoning-gym's data sets, surveyed in processes with its fixed hash seed."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workers.handlers.gym_checks import NEARLY

ROOT = Path(__file__).parents[2]


class Surveyed(NamedTuple):
    """One data set: answers tried, and those that were graded wrongly by us and by reasoning-gym alone."""

    name: str
    oracles: int
    refused: list[str]
    wrong: int
    accepted: list[str]
    accepted_upstream: int
    raised_upstream: int


async def surveyed(seed: int, entries: int, names: Sequence[str] = ()) -> list[Surveyed]:
    """All data sets without `names`."""
    told: dict[str, list[dict[str, Any]]] = {}
    async for each in _told(seed, entries, names):
        told.setdefault(each["name"], []).append(each)
    return [_summed(name, listed) for name, listed in sorted(told.items())]


def _summed(name: str, listed: list[dict[str, Any]]) -> Surveyed:
    wrong = [each for told in listed for each in told["wrong"]]
    return Surveyed(
        name=name,
        oracles=sum("oracle" in told for told in listed),
        refused=[f"{told['answer']}: {told['oracle']}" for told in listed if told.get("oracle", 1.0) != 1.0],
        wrong=len(wrong),
        accepted=[said for said, ours, _ in wrong if _is_full(ours)],
        accepted_upstream=sum(_is_full(theirs) for _, _, theirs in wrong),
        raised_upstream=sum(isinstance(theirs, str) for _, _, theirs in wrong),
    )


def _is_full(score: float | str) -> bool:
    return isinstance(score, float) and not score < NEARLY  # NaN is no reward either


async def _told(seed: int, entries: int, names: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
    argv = ["-W", "ignore", "-m", "tests.graders.gym_survey", str(seed), str(entries), *names]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=environment, stdout=asyncio.subprocess.PIPE, limit=1 << 26
    )
    assert process.stdout is not None
    async for line in process.stdout:  # generators print, too
        _, found, told = line.partition(b"survey {")
        if found:
            yield json.loads(b"{" + told)
    assert await process.wait() == 0
