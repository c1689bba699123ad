"""Compares the results of two evaluations over the tasks that they share."""

from typing import Final

from prorl_mq.evaluation import paired
from prorl_mq.evaluation.results import Comparison, Results, TaskChange, TaskResult

SHOWN: Final = 20  # tasks that changed most


def compared(ours: Results, other: Results, name: str) -> Comparison:
    """Our results against another's. A task counts if both have the same row, count it solved at
    the same reward, and have scored samples of it.
    """
    theirs = {(each.name, task.task_id): (each.solved_at, task) for each in other.sets for task in each.tasks}
    everything = theirs.keys() | {(each.name, task.task_id) for each in ours.sets for task in each.tasks}
    differences: dict[str, list[float]] = {each.name: [] for each in ours.sets}
    changes: list[TaskChange] = []
    for each in ours.sets:
        for task in each.tasks:
            at, same = theirs.get((each.name, task.task_id), (None, task))
            if at != each.solved_at or same.digest != task.digest or not (task.scored and same.scored):
                continue
            change = TaskChange(set=each.name, task_id=task.task_id, ours=_share(task), other=_share(same))
            differences[each.name].append(change.ours - change.other)
            changes.append(change)
    tests = {name: paired.compare([(1.0, values)]) for name, values in differences.items()}
    changed = sorted((c for c in changes if c.ours != c.other), key=lambda c: -abs(c.ours - c.other))
    return Comparison(
        other=name,
        other_pool=other.pool,
        compared=len(changes),
        left_out=len(everything) - len(changes),
        total=paired.compare([(each.weight, differences[each.name]) for each in ours.sets]),
        sets={name: test for name, test in tests.items() if test is not None},
        changes=changed[:SHOWN],
    )


def _share(task: TaskResult) -> float:
    return task.solved / task.scored
