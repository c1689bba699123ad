"""What equals the right answer earns the reward, however it is written; nothing else does."""

import ast
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.schema.task_schema import split
from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from workers.handlers.answers import boxed
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.math.checker import Question, equal
from workers.handlers.math.family import Math, accepted
from workers.handlers.rows import BadRow, question_of
from workers.rehearsal.stages import task_of

pytestmark = pytest.mark.anyio
STATE = Path(os.environ.get("PRORL_STATE_DIR", Path(__file__).parents[2] / ".state"))
CASES = STATE / "math-verify"
DIFFERENT = {"${35 cm,4}$"}  # the right answer has other marks between its boxes
FALSE = ("5+5+1 = 7", "5+5+1 = 1/3", "3+3 = 2")  # equations of which math-verify reads the last side
HALF = {
    "prompt": [{"role": "user", "content": "What is 1/4 + 1/4?"}],
    "reward_model": {"ground_truth": r"\frac{1}{2}", "style": "rule"},
    "extra_info": {"answer": "1/2", "index": 0},
    "ability": "math",
    "tools": False,
}
DAPO = {**HALF, "prompt": json.dumps(HALF["prompt"]), "reward_model": json.dumps({"ground_truth": "34"})}
GSM8K = {"question": "How many?", "answer": "She has 5*8+2=42.\n#### 42", "tools": False}
SUITE = Suite(
    family="math",
    oracle=[
        (HALF, [r"So it is \boxed{\frac{1}{2}}."]),
        (HALF, [r"So it is \boxed{0.5}."]),
        (HALF, [r"First \boxed{3}? No: $\boxed{\dfrac{2}{4}}$"]),
        (DAPO, [r"\boxed{34}"]),
        (GSM8K, [r"\boxed{\$42}"]),
        ({**HALF, "reward_model": {"ground_truth": ["0", "x > 1"]}}, [r"\boxed{(1, \infty)}"]),
        ({**HALF, "reward_model": {"ground_truth": r"\{1, 2\}"}}, [r"\boxed{2} and \boxed{1}"]),
    ],
    hacks={
        "no box": (HALF, ["The answer is 1/2."]),
        "a wrong answer": (HALF, [r"\boxed{\frac{1}{3}}"]),
        "both": (HALF, [r"\boxed{\frac{1}{2} \text{ or } \frac{1}{3}}"]),
        "two boxes": (HALF, [r"\boxed{\frac{1}{2}} or \boxed{\frac{1}{3}}"]),
        "many guesses": (GSM8K, [r"\boxed{" + ",".join(map(str, range(100))) + "}"]),
        "everything": (HALF, [r"\boxed{\mathbb{R}}"]),
        "an interval around it": (HALF, [r"\boxed{[0, 1]}"]),
        "a tautology": (HALF, [r"\boxed{x = x}"]),
        "undefined": (HALF, [r"\boxed{\frac{0}{0}}"]),
        "a program": (HALF, [r"\boxed{__import__('os').system('true') or 1/2}"]),
        "a tower": (HALF, [r"\boxed{9^{9^{9^{9^{9}}}}}"]),
        "a box that never closes": (HALF, [r"\boxed{" * 5000 + r"\frac{1}{2}"]),
        "a very long answer": (HALF, [r"\boxed{0." + "5" * 5000 + "}"]),
        "the question's words": (HALF, [r"\boxed{1/4 + 1/4 = ?}"]),
    },
)


@pytest.fixture
async def family() -> AsyncIterator[Math]:
    made = Math()
    yield made
    await made.aclose()


@pytest.mark.slow
async def test_the_oracle_earns_all_and_a_hack_nothing(stages: Stages, family: Math) -> None:
    await held(SUITE, family, stages)


async def test_an_answer_that_never_ends_costs_only_itself(stages: Stages) -> None:
    """The next one is scored by the same process."""
    family = Math()
    family._checker = Forks("workers.handlers.math.checker", ForkLimits(cpu_s=2))
    try:
        endless = await stages.score(family, HALF, {"answer": r"\boxed{\int_0^1 \frac{1}{(x^{97}+x^{13}+7)^{19}} dx}"})
        assert (endless.reward, "took too long" in (endless.note or "")) == (0.0, True), endless
        process = family._checker._process
        assert (await stages.score(family, HALF, {"answer": r"\boxed{0.5}"})).reward == 1.0
        assert family._checker._process is process
    finally:
        await family.aclose()


async def test_an_interval_is_one_answer(stages: Stages, family: Math) -> None:
    """It reads as a list of JSON: each of its ends was right, and itself wrong."""
    row = {**HALF, "reward_model": {"ground_truth": "[-2, 7]"}}
    said = ("[-2,7]", "x \\in [-2, 7]", "-2", "(-2,7)")
    rewards = [(await stages.score(family, row, {"answer": rf"\boxed{{{each}}}"})).reward for each in said]
    assert rewards == [1.0, 1.0, 0.0, 0.0]


async def test_columns_that_tell_the_answer_are_sealed() -> None:
    opened, sealed = split(Math.schema, task_of(Math(), {**HALF, "unforeseen_solution": "1/2"}))
    assert set(opened) == {"prompt", "tools"}
    assert set(sealed) == {"reward_model", "extra_info", "ability", "unforeseen_solution"}


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        (HALF, [r"\frac{1}{2}"]),
        (DAPO, ["34"]),
        (GSM8K, ["42"]),
        ({"answer": r"We see that it is \boxed{7}."}, ["7"]),
        ({"reward_model": {"ground_truth": ["1", "2"]}}, ["1", "2"]),
        ({"reward_model": '{"ground_truth": "[\\"1\\"]"}'}, ["1"]),
        ({"reward_model": {"ground_truth": '["1", "2"]'}}, ["1", "2"]),
        (
            {"reward_model": {"ground_truth": "[-2, 7]"}},
            ["[-2, 7]"],
        ),  # an interval: -2 was right, and the interval wrong
        ({"answer": "[[1, 2], [3, 4]]"}, ["[[1, 2], [3, 4]]"]),
        ({"answer": [-2, 7]}, ["-2", "7"]),
    ],
)
def test_the_answer_is_found_where_data_sets_have_it(row: dict[str, Any], answers: list[str]) -> None:
    assert accepted(row) == answers


def test_a_row_without_question_or_answer_says_what_is_missing() -> None:
    with pytest.raises(BadRow, match="no question: none of prompt, question"):
        question_of({"prompt": []})
    with pytest.raises(BadRow, match=r"no answer: neither reward_model\.ground_truth"):
        accepted({"extra_info": {}})


def published() -> Iterator[tuple[str, str, bool]]:
    """Cases of math-verify's own tests whose two sides are an answer and nothing else."""
    for module in sorted(CASES.glob("test_*.py")):
        for function in ast.parse(module.read_text()).body:
            for mark in getattr(function, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.args[0]).replace(" ", "") == "'gold,pred,expected'":
                    for case in mark.args[1].elts:  # type: ignore[attr-defined]
                        if not any(isinstance(part, ast.JoinedStr) for part in ast.walk(case)):
                            gold, said, expected = ast.literal_eval(case)
                            short = len(said) <= 300 and said not in DIFFERENT
                            expected = expected and not any(false in said for false in FALSE)
                            if short and (right := bare(gold)) and (answer := bare(said)):
                                yield right, answer, bool(expected)


def bare(text: str) -> str | None:
    """The answer in a text that is only an answer, in a box or between dollars."""
    text = text.strip()
    if (inside := boxed(text)) is not None:
        first = text.partition("\\boxed{")[2]  # not so where words stand between the boxes: then the last counts
        return inside if first.startswith(inside.partition(",")[0]) else None
    between = text.strip("$").strip()
    return between if text.startswith("$") and "$" not in between else None


@pytest.mark.slow
def test_math_verifys_own_cases_agree() -> None:
    """Each side goes in as our family takes it: what stands in the box."""
    if not CASES.is_dir() and not os.environ.get("CI"):
        pytest.skip("no cases: run `make task-cases`")
    cases = list(published())
    assert len(cases) >= 100
    wrong = [case for case in cases if equal(Question(answer=case[1], accepted=[case[0]])).right != case[2]]
    assert wrong == []
