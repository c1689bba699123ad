"""Every data set of reasoning-gym, as we score it and as it scores alone: run with PYTHONHASHSEED=0, prints JSON lines.

python -m tests.graders.gym_survey SEED ENTRIES [NAME...]
"""

import contextlib
import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tests.graders.hostile import FIXED
from workers.handlers.gym_checks import REFUSED
from workers.handlers.gym_client import ScoringFailed, check_answer
from workers.handlers.gym_process import own_answer, score

CONSTANTS = (
    "0", "1", "-1", "nan", "inf", "-inf", "nan+nanj", "[]", "[[]]", "{}", "()", "True", "False", "None", "null",
    "yes", "no",
    "\u0663\u2460\U0001f602", " ", "9" * 400, ".", '""', "1e999", "Infinity", "0.0", "[nan]", "A", "*", "x",
    r"\boxed{}",
    "a9 [({]x\\" * 1300, *FIXED,
)  # fmt: skip
NO_ORACLE = {"boxnet", "rush_hour"}  # their own answers are none, and what they keep about themselves is no solution
SEVERAL = {"cryptarithm"}  # with another digit an answer may be right, too
CASELESS = re.compile(r"\W+")
LIMIT_S = 8


class TookTooLong(BaseException):
    """The scorer is given up."""


def expired(*_: object) -> None:
    raise TookTooLong


def neighbours(name: str, answer: str) -> Iterator[str]:
    """Texts near the right one that say something else, whatever the data set asks for."""
    yield from (f"{answer}{more}" for more in ("wombat", ", wombat", " 7", " wombat", " or 0"))
    yield from (f"wombat {answer}", f"{answer}\nno: {answer} is wrong")
    if (found := re.search(r"\d", answer)) and name not in SEVERAL:
        place = found.start()
        yield f"{answer[:place]}{(int(answer[place]) + 5) % 10}{answer[place + 1 :]}"
    if answer.endswith("]"):
        yield f"{answer[:-1]}, 0]"
        yield f"{answer[:-1]}, [0]]"


def hacks(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield from CONSTANTS
    yield from (entry["question"], entry["question"][-300:])
    about = entry["metadata"]
    if name in {"countdown", "puzzle24"}:
        target = about.get("target", 24)
        yield from (f"{target}", f"{target}+0", f"{target}.9", f"{target - 4} + 1 + 1 + 2", f"({target}, 1, 1, 1)")


def earned(name: str, dataset: Any, entry: Mapping[str, Any], answer: str, *, ours: bool) -> float | str:
    """The score, or what came instead of it."""
    signal.alarm(LIMIT_S)
    try:
        if not ours:
            return float(dataset.score_answer(answer, entry))
        check_answer(name, answer)
        return score(name, dataset, answer, entry)
    except ScoringFailed:
        return 0.0
    except TookTooLong:
        return "took too long"
    except Exception as error:
        return f"raised {type(error).__name__}"
    finally:
        signal.alarm(0)


def survey(name: str, seed: int, entries: int) -> Iterator[dict[str, Any]]:
    """For each entry: what the oracle earned, and every wrong answer with what it earned from both."""
    from reasoning_gym.factory import create_dataset

    dataset = create_dataset(name, seed=seed, size=entries)
    for entry in (dataset[place] for place in range(entries)):
        right = own_answer(name, entry)
        same = CASELESS.sub("", right).lower()
        wrong = [*hacks(name, entry), *(neighbours(name, right) if name not in NO_ORACLE else ())]
        told: dict[str, Any] = {"name": name, "answer": right, "wrong": []}
        if name not in NO_ORACLE:
            told["oracle"] = earned(name, dataset, entry, right, ours=True)
        for said in dict.fromkeys(wrong):
            if CASELESS.sub("", said).lower() != same or (said != right and not same):
                told["wrong"].append(
                    [said[:200], *(earned(name, dataset, entry, said, ours=ours) for ours in (True, False))]
                )
        yield told


def main() -> None:
    from reasoning_gym.factory import DATASETS

    seed, entries, *names = sys.argv[1:]
    signal.signal(signal.SIGALRM, expired)
    for name in names or sorted(set(DATASETS) - {"composite"} - set(REFUSED)):
        for told in survey(name, int(seed), int(entries)):
            with contextlib.suppress(BrokenPipeError):
                print("survey", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
