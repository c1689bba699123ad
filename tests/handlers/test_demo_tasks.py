"""The demo's tasks are what the task families take."""

from collections import Counter
from pathlib import Path

import msgspec

from prorl_mq.messages import Task
from prorl_mq.task_schema import split
from workers.handlers.human_eval import HumanEval
from workers.handlers.human_eval import Options as HumanEvalOptions
from workers.handlers.reasoning_gym import Options, ReasoningGym

TASKS = Path(__file__).parents[2] / "examples" / "demo_tasks.jsonl"


def test_every_task_fits_its_schema() -> None:
    tasks = [msgspec.json.decode(line, type=Task) for line in TASKS.read_bytes().splitlines()]
    families = {"reasoning_gym": (ReasoningGym.schema, Options), "human_eval": (HumanEval.schema, HumanEvalOptions)}
    for task in tasks:
        schema, options = families[task.data_source]
        opened, sealed = split(schema, task)
        assert sealed == {}
        msgspec.convert(opened, options)
    assert Counter(task.data_source for task in tasks) == {"reasoning_gym": 5, "human_eval": 3}
    assert len({task.task_id for task in tasks}) == len(tasks)
