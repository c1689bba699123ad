"""An oracle and an adversarial suite of a task family: what earns everything, and what must earn nothing.

Each score is kept with the test that it was given in, so that `make test-tasks` can show them all in one table.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from workers.handler import Handler

HEAD = ("family", "oracle score", "empty score", "hacks caught", "seconds")
KEPT = "score of a task family"
Kind = Literal["oracle", "empty", "hack"]


class Kept(NamedTuple):
    """What one answer earned."""

    family: str
    kind: Kind
    reward: float
    seconds: float


class Suite(NamedTuple):
    """`oracle` and each hack: a payload, and what the policy says in its turns."""

    family: str
    oracle: Sequence[tuple[Mapping[str, Any], Sequence[str]]]
    hacks: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]]
    empty: str = ""


async def held(suite: Suite, handler: Handler, stages: Any) -> None:
    """Asserts that the oracle earns 1 each time, silence 0, and no hack anything; keeps what each earned."""

    async def earned(kind: Kind, payload: Mapping[str, Any], texts: Sequence[str]) -> Any:
        began = time.monotonic()
        score = (await stages.rollout(handler, dict(payload), list(texts)))[1]
        stages.keep(Kept(suite.family, kind, score.reward, time.monotonic() - began))
        return score

    oracle, empty, hacks = {}, {}, {}
    for place, (payload, texts) in enumerate(suite.oracle):
        oracle[place] = await earned("oracle", payload, texts)
        empty[place] = await earned("empty", payload, [suite.empty])
    for name, (payload, texts) in suite.hacks.items():
        hacks[name] = await earned("hack", payload, texts)
    assert {place: score for place, score in oracle.items() if score.reward != 1.0} == {}
    assert {place: score for place, score in empty.items() if score.reward != 0.0} == {}
    assert {name: score for name, score in hacks.items() if score.reward != 0.0} == {}


def rows(kept: Iterable[Kept]) -> list[tuple[str, ...]]:
    """One for each family. A hack is caught if it earned nothing."""
    families: dict[str, dict[Kind, list[Kept]]] = defaultdict(lambda: defaultdict(list))
    for each in kept:
        families[each.family][each.kind].append(each)
    return [
        (
            family,
            *(f"{sum(each.reward for each in kinds[kind]):g}/{len(kinds[kind])}" for kind in ("oracle", "empty")),
            f"{sum(each.reward == 0.0 for each in kinds['hack'])}/{len(kinds['hack'])}",
            f"{sum(each.seconds for scores in kinds.values() for each in scores):.1f}",
        )
        for family, kinds in sorted(families.items())
    ]


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows under their heads."""
    lines = [HEAD, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
