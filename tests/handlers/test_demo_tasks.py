"""The demo's tasks are what the task families take."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from prorl_mq.cli.arguments import FAMILIES as KNOWN
from prorl_mq.messages import Task
from prorl_mq.task_schema import split
from workers.handlers.asking import OPTIONS, Options
from workers.handlers.human_eval import HumanEval
from workers.handlers.reasoning_gym import ReasoningGym
from workers.registry import load

FAMILIES = Path(__file__).parents[2] / "examples" / "families"
TASKS = Path(__file__).parents[2] / "examples" / "demo_tasks.jsonl"


def test_every_task_fits_its_schema() -> None:
    tasks = [msgspec.json.decode(line, type=Task) for line in TASKS.read_bytes().splitlines()]
    schemas = {"reasoning_gym": ReasoningGym.schema, "human_eval": HumanEval.schema}
    for task in tasks:
        opened, sealed = split(schemas[task.data_source], task)
        assert sealed == {}
        msgspec.convert({name: opened[name] for name in OPTIONS if name in opened}, Options)
    assert Counter(task.data_source for task in tasks) == {"reasoning_gym": 5, "human_eval": 3}
    assert len({task.task_id for task in tasks}) == len(tasks)


@pytest.mark.parametrize("path", sorted(FAMILIES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_tasks_of_a_family_are_what_it_takes(path: Path) -> None:
    """Whoever scores them finds the answer, and nobody else."""
    registry = load()
    for line in path.read_bytes().splitlines():
        task = msgspec.json.decode(line, type=Task)
        opened, sealed = split(registry[task.data_source].schema, task)
        assert not {"answer", "reward_model", "private_test_cases", "public_test_cases"} & opened.keys()
        assert sealed or task.data_source in {"textarena", "human_eval", "reasoning_gym"}


def test_the_demo_knows_every_family_of_the_examples() -> None:
    assert {path.stem for path in FAMILIES.glob("*.jsonl")} == set(KNOWN)
