"""What a corpus is, and what a grader made of it."""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

Grade = Callable[["Case"], Awaitable[float | None]]


class Case(NamedTuple):
    """An answer, and whether it is right. `gold`: the accepted answer; `said`: the whole text of the policy."""

    gold: str
    said: str
    right: bool
    question: str = "What is it?"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one corpus. `undecided`: the grader left them to a judge."""

    family: str
    corpus: str
    right: int
    wrong: int
    refused: list[Case]  # right ones that did not earn 1
    accepted: list[Case]  # wrong ones that did
    undecided: int = 0

    @property
    def row(self) -> tuple[str, ...]:
        missed = f"{len(self.refused)} ({len(self.refused) / max(1, self.right):.1%})"
        let_in = f"{len(self.accepted)} ({len(self.accepted) / max(1, self.wrong):.1%})"
        return self.family, self.corpus, str(self.right), missed, str(self.wrong), let_in, str(self.undecided)


HEAD = ("family", "corpus", "right answers", "refused", "wrong answers", "accepted", "left to a judge")


async def measured(family: str, corpus: str, cases: Iterable[Case], grade: Grade) -> Measured:
    """Grades every case once; None is a grade that only a judge could give."""
    graded = [(case, await grade(case)) for case in dict.fromkeys(cases)]
    return Measured(
        family=family,
        corpus=corpus,
        right=sum(case.right for case, _ in graded),
        wrong=sum(not case.right for case, _ in graded),
        refused=[case for case, reward in graded if case.right and reward is not None and reward < 1.0],
        accepted=[case for case, reward in graded if not case.right and reward is not None and reward >= 1.0],
        undecided=sum(reward is None for _, reward in graded),
    )
