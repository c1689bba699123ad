"""Rows in the shapes in which clients of ProRL Agent's first release send them, and what a policy says to each.

A question begins with `case NAME/right` or `case NAME/wrong`: the policy sees nothing else, and says that case's turns.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.agent.chat import call
from tests.swe.rows import QUICK, ROWS


class Case(NamedTuple):
    """One row. `turns` are the policy's, by whether it is right; `single`: a reasoning task, of one turn."""

    instance: dict[str, Any]
    right: Sequence[str]
    wrong: Sequence[str]
    single: bool = False


def _finish(said: str) -> str:
    return call("finish", json.dumps({"message": said, "task_completed": "true"}))


def _bash(command: str) -> str:
    return call("execute_bash", json.dumps({"command": command}))


def _python(program: str) -> str:
    return f"```python\n{program}\n```"


def _verl(source: str, truth: Any, *, text: bool = False, **more: Any) -> dict[str, Any]:
    """A row as verl has it, with columns of other rows of the file as null; `text`: with JSON text in its columns."""
    prompt, model = [{"role": "user", "content": "QUESTION"}], {"style": "rule", "ground_truth": truth}
    about = {"split": "train", "index": 7, "name": source, "answer": "CANARY"}
    columns = {
        "ability": "any",
        "repo": None,
        "seed": None,
        "problem_statement": None,
        "tools": "",
        "extra_info": about,
        **more,
    }
    if text:
        return {"data_source": source, "prompt": json.dumps(prompt), "reward_model": json.dumps(model), **columns}
    return {"data_source": source, "prompt": prompt, "reward_model": model, **columns}


SUM_TESTS = {"inputs": ["1 2\n", "40 2\n"], "outputs": ["3\n", "42\n"]}
ADDS, CHEATS = _python("print(sum(map(int, input().split())))"), _python("print(3)")
SUM = {"entry": {"question": "What is 20 + 22?", "answer": "42", "metadata": {}}, "reasoning_task": "chain_sum"}
FERRY = {
    "type": "function",
    "function": {"name": "book", "parameters": {"type": "object", "properties": {"cars": {"type": "integer"}}}},
}
RULES = {"instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
         "kwargs": [{}, {"num_sentences": 2, "relation": "less than"}]}  # fmt: skip
LIGHT = "300000 kilometres each second"
SWE = {**ROWS[QUICK], "data_source": "swebench", "data_kind": "swebench", "docker_image": None, "hints_text": "",
       "environment_setup_commit": "CANARY", "created_at": "2024-01-01", "prompt": "CANARY"}  # fmt: skip
PATCHES = f"cd /testbed && git apply --whitespace=nowarn <<'END_OF_PATCH'\n{ROWS[QUICK]['patch']}\nEND_OF_PATCH"

CASES = {
    "swebench": Case(SWE, [_bash(PATCHES), _finish("done")], [_bash("ls /testbed"), _finish("done")]),
    "deepscaler": Case(
        _verl("deepscaler", r"\frac{1}{2}"),
        [call("execute_ipython_cell", '{"code": "print(3 / 6)"}'), _finish(r"It is \boxed{0.5}.")],
        [_finish(r"\boxed{2}")],
    ),
    "deepcoder": Case(_verl("deepcoder_taco", json.dumps(SUM_TESTS), text=True), [_finish(ADDS)], [_finish(CHEATS)]),
    "codecontests": Case(_verl("codecontests", SUM_TESTS), [ADDS], [CHEATS], single=True),
    "rstar": Case(_verl("rStar", SUM_TESTS, text=True), [ADDS], [CHEATS], single=True),
    "stem": Case(_verl("stem", LIGHT), [r"\boxed{3e8 m/s}"], [r"\boxed{slow}"], single=True),
    "llm_judge": Case(_verl("llm_judge", LIGHT), ["<answer>3e8 m/s</answer>"], ["<answer>slow</answer>"], single=True),
    "tool_call": Case(
        _verl("tool_call", [{"name": "book", "arguments": {"cars": 2}}], tools=json.dumps([FERRY])),
        ["I book.\n" + call("book", '{"cars": 2}')],
        [call("book", '{"cars": 3}')],
        single=True,
    ),
    "if_eval": Case(_verl("if_eval", RULES), ["Ferries leave."], ["One. Two, three."], single=True),
    "gym": Case(
        {**_verl("reasoning_gym", "42"), "reward_model": {"ground_truth": "42", **SUM}},
        ["<answer>42</answer>"],
        ["<answer>41</answer>"],
        single=True,
    ),
    "gym_old": Case(
        _verl("reasoning_gym", "42", extra_info={"split": "train", "index": 1, "name": "gym", "reward_model": SUM}),
        ["<answer>42</answer>"],
        ["<answer>41</answer>"],
        single=True,
    ),
}


def asked(name: str, *, right: bool) -> dict[str, Any]:
    """The row with its question."""
    mark, instance = f"case {name}/{'right' if right else 'wrong'}", CASES[name].instance
    if name == "swebench":
        said: Any = {"problem_statement": f"{mark}\n{instance['problem_statement']}"}
    elif isinstance(instance["prompt"], str):
        said = {"prompt": instance["prompt"].replace("QUESTION", mark)}
    else:
        said = {"prompt": [{"role": "user", "content": mark}]}
    return {**instance, **said, "trajectory_id": int(right)}
