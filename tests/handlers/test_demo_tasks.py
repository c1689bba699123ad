"""The demo's tasks are what the task families take."""

from collections import Counter
from pathlib import Path

import msgspec

from prorl_mq.messages import Task
from prorl_mq.task_schema import split
from workers.handlers.asking import OPTIONS, Options
from workers.handlers.human_eval import HumanEval
from workers.handlers.reasoning_gym import ReasoningGym

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
