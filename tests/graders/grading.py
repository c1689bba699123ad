"""The graders under measurement, without the processes that confine them: what they say of a case."""

from pathlib import Path

import msgspec

from tests.graders.measure import Case, Grade
from workers.handler import Ran
from workers.handlers.answers import boxed
from workers.handlers.clocks import AskTime
from workers.handlers.forks import Forks
from workers.handlers.math.checker import reply_to
from workers.handlers.math.family import Math
from workers.handlers.stem.rules import decided
from workers.rehearsal.stages import Rehearsal, task_of


class Here(Forks):
    """A scorer's module in this process: fork for fork the same replies, at a hundredth of the cost."""

    async def ask(self, line: bytes, given: AskTime | None = None) -> bytes | None:
        return reply_to(line)


def math_grade() -> Grade:
    """As the family scores, from the policy's text to the reward."""
    family, rehearsal = Math(), Rehearsal(None, Path())
    family._checker = Here("workers.handlers.math.checker")

    async def grade(case: Case) -> float | None:
        row = {"question": case.question, "answer": case.gold, "tools": False}
        ran = Ran(trajectory=None, export={"answer": case.said})
        return (await rehearsal.score(family, task_of(family, row), ran)).reward

    return grade


async def math_verify_grade(case: Case) -> float | None:
    """math-verify as its own documentation uses it, on the whole text."""
    from math_verify import parse, verify

    try:
        gold = parse(f"${case.gold}$", parsing_timeout=0)
        return float(verify(gold, parse(case.said, parsing_timeout=0), timeout_seconds=0))
    except Exception:
        return 0.0


async def stem_grade(case: Case) -> float | None:
    """By rule; None where only a judge decides."""
    answer = boxed(case.said)
    by_rule = decided(answer, [case.gold]) if answer and answer.strip() else False
    return None if by_rule is None else float(by_rule)


def told(cases: list[Case], limit: int = 12) -> list[str]:
    """For a test's message."""
    return [msgspec.json.encode([case.gold, case.said]).decode() for case in cases[:limit]]
