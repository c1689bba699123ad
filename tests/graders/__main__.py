"""Measures every grader at length and writes the table: python -m tests.graders [FILE].

Ends with exit code 1 if a right answer was refused, a wrong one accepted, or a text made a family fail.
"""

import asyncio
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.converters.published import ROOT
from tests.graders import math_corpus, stem_corpus
from tests.graders.fuzz import Tried, fuzz_answers, fuzz_environments
from tests.graders.grading import math_grade, math_verify_grade, stem_grade, told
from tests.graders.gym_corpus import Surveyed, surveyed
from tests.graders.measure import HEAD, Measured, measured
from workers.handlers.gym_checks import REFUSED, reasons

PAGE = ROOT / "docs" / "reference" / "graders.md"
SEED, COUNT, ENTRIES, TEXTS = 2026, 1200, 2, 40
INTRODUCTION = """\
# How right the graders are

Made by `make test-graders`; a shorter form of every check runs in `make test`. *Refused* are right answers in odd but
legal forms that did not earn 1, *accepted* are wrong ones that did. Answers are written by hand or generated from
templates with a fixed seed. What happens when a scorer raises: [task families](../howto/families.md).

## Answers
"""
ALONE = """\
`math-verify alone` is the package as its documentation uses it, over the same corpus: words, relations, units, bases
and false equations that it drops are what it accepts, and forms that it does not know what it refuses.

## reasoning-gym
"""
HOSTILE = """\
## Hostile texts

Each text was scored, or played as a move. A violation is an exception that leaves the family, or a reward that is no
number: it would cost an attempt and end without a reward.
"""


def page(corpora: Sequence[Measured], gym: Sequence[Surveyed], fuzzed: Sequence[Tried]) -> str:
    """The whole document."""
    own = reasons()
    checks = [(f"`{name}`", "refused" if name in REFUSED else "own check", why) for name, why in sorted(own.items())]
    texts = [(each.family, str(each.texts), str(each.earned), str(len(each.violations))) for each in _summed(fuzzed)]
    parts = [
        INTRODUCTION,
        _table(HEAD, [each.row for each in corpora]),
        ALONE,
        _counted(gym),
        _table(("data set", "here", "reasoning-gym's own scorer"), checks),
        HOSTILE,
        _table(("family", "texts", "earned everything", "violations"), texts),
    ]
    return "\n".join(parts)


def _counted(gym: Sequence[Surveyed]) -> str:
    oracles, refused = sum(each.oracles for each in gym), sum(len(each.refused) for each in gym)
    wrong, accepted = sum(each.wrong for each in gym), sum(len(each.accepted) for each in gym)
    upstream, raised = [each.accepted_upstream for each in gym], sum(each.raised_upstream for each in gym)
    return f"""\
{len(gym)} data sets. Of {oracles} answers of their own {refused} were refused; of {wrong} wrong answers (constants, the
question, neighbours of the right one) {accepted} were accepted. reasoning-gym's own scorers accept {sum(upstream)} of
these, in {sum(map(bool, upstream))} data sets, and raise over {raised}.
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def _summed(fuzzed: Sequence[Tried]) -> list[Tried]:
    """One line for each family, however many games it has."""
    families: dict[str, list[Tried]] = {}
    for each in fuzzed:
        families.setdefault(each.family.split()[0].rstrip(","), []).append(each)
    return [
        Tried(name, sum(e.texts for e in all_), sum(e.earned for e in all_), [v for e in all_ for v in e.violations])
        for name, all_ in families.items()
    ]


def _has_gem() -> bool:
    """GEM lies where `make trainer-types` puts it; without it the page has no line of its."""
    place = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state")).absolute() / "trainers" / "whole"
    sys.path.insert(0, str(place))
    return (place / "gem").is_dir()


async def main(path: Path) -> int:
    by_hand, generated = [*math_corpus.by_hand()], [*math_corpus.generated(SEED, COUNT)]
    corpora = [
        await measured("math", "by hand", by_hand, math_grade()),
        await measured("math", "generated", generated, math_grade()),
        await measured("math-verify alone", "by hand", by_hand, math_verify_grade),
        await measured("math-verify alone", "generated", generated, math_verify_grade),
        await measured("stem, rules", "by hand", stem_corpus.by_hand(), stem_grade),
        await measured("stem, rules", "generated", stem_corpus.generated(SEED, 2 * COUNT), stem_grade),
    ]
    gym = await surveyed(SEED, ENTRIES)
    fuzzed = [*await fuzz_answers(SEED, 10 * TEXTS), *await fuzz_environments(SEED, TEXTS, places=20, gem=_has_gem())]
    await asyncio.to_thread(path.write_text, page(corpora, gym, fuzzed))
    faults = [
        *(f"{each.family}, {each.corpus}: refused {told(each.refused)}" for each in corpora if each.refused),
        *(f"{each.family}, {each.corpus}: accepted {told(each.accepted)}" for each in corpora if each.accepted),
        *(
            f"{each.name}: refused {each.refused}, accepted {each.accepted}"
            for each in gym
            if each.refused or each.accepted
        ),
        *(f"{each.family}: {each.violations}" for each in fuzzed if each.violations),
    ]
    ours = [fault for fault in faults if not fault.startswith("math-verify alone")]
    print("\n".join(ours) or f"nothing was graded wrongly; see {path}")
    return int(bool(ours))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)))
