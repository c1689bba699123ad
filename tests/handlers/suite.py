"""An oracle and an adversarial suite of a task family: what earns everything, and what must earn nothing."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workers.handler import Handler

HEAD = ("family", "oracle score", "empty score", "hacks caught", "seconds")
ROWS: list[tuple[str, ...]] = []  # one for each suite that was run in this process


class Suite(NamedTuple):
    """`oracle` and each hack: a payload, and what the policy says in its turns."""

    family: str
    oracle: Sequence[tuple[Mapping[str, Any], Sequence[str]]]
    hacks: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]]
    empty: str = ""


async def held(suite: Suite, handler: Handler, stages: Any) -> None:
    """Asserts that the oracle earns 1 each time, silence 0, and no hack anything; keeps the row of the table."""
    began = time.monotonic()
    oracle, empty, hacks = {}, {}, {}
    for place, (payload, texts) in enumerate(suite.oracle):
        oracle[place] = (await stages.rollout(handler, dict(payload), list(texts)))[1]
        empty[place] = (await stages.rollout(handler, dict(payload), [suite.empty]))[1]
    for name, (payload, texts) in suite.hacks.items():
        hacks[name] = (await stages.rollout(handler, dict(payload), list(texts)))[1]
    caught = sum(score.reward == 0.0 for score in hacks.values())
    ROWS.append(
        (
            suite.family,
            f"{sum(score.reward for score in oracle.values()):g}/{len(oracle)}",
            f"{sum(score.reward for score in empty.values()):g}/{len(empty)}",
            f"{caught}/{len(hacks)}",
            f"{time.monotonic() - began:.1f}",
        )
    )
    assert {place: score for place, score in oracle.items() if score.reward != 1.0} == {}
    assert {place: score for place, score in empty.items() if score.reward != 0.0} == {}
    assert {name: score for name, score in hacks.items() if score.reward != 0.0} == {}


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows under their heads."""
    lines = [HEAD, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
