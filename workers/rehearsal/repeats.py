"""Finds flaky examples: those whose worlds or scores differ between runs that say the same."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from prorl_mq.process.screen.tables import table
from prorl_mq.schema.codec import sendable
from prorl_mq.schema.messages import Task
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service.recorded import WorldDifference
from workers.handler import Handler, Ran, Score
from workers.rehearsal.check import Example
from workers.rehearsal.comparing import differing, export_difference, first_difference, of_trajectory
from workers.rehearsal.stages import Rehearsal, task_of


class Repeated(NamedTuple):
    """One example after so many runs, each in a new sandbox and scored in another one."""

    family: str
    example: int
    runs: int
    worlds: int  # runs in which something differed from the first one
    scores: Sequence[float]  # different ones, in the order in which they came; nothing but a reward is shown
    scores_differ: bool  # or their parts
    first: WorldDifference | None
    error: str | None = None  # that ended the repeats

    @property
    def flaky(self) -> bool:
        return bool(self.worlds or self.scores_differ or self.error)


class _Once(NamedTuple):
    ran: Ran
    score: Score


async def repeated(handler: Handler, rehearsal: Rehearsal, times: int) -> list[Repeated]:
    """Each example of a family, run so many times."""
    examples: Sequence[Example] = getattr(handler, "examples", ())
    return [await _example(handler, rehearsal, times, number, each) for number, each in enumerate(examples, 1)]


async def _example(handler: Handler, rehearsal: Rehearsal, times: int, number: int, example: Example) -> Repeated:
    task, family = task_of(handler, example.payload), type(handler).__name__
    runs: list[_Once] = []
    error: str | None = None
    try:
        while len(runs) < times:
            runs.append(await _once(handler, rehearsal, task, example.says))
    except Exception as raised:
        error = f"run {len(runs) + 1} of {times}: {type(raised).__name__}: {raised}"
    volatile = getattr(handler, "volatile", ())
    found = [_difference(runs[0].ran, each.ran, volatile) for each in runs[1:]]
    worlds = [each for each in found if each is not None]
    scores = {(each.score.reward, msgspec.json.encode(each.score.parts, order="sorted")) for each in runs}
    rewards = list(dict.fromkeys(each.score.reward for each in runs))
    first = worlds[0] if worlds else None
    return Repeated(family, number, len(runs), len(worlds), rewards, len(scores) > 1, first, error)


async def _once(handler: Handler, rehearsal: Rehearsal, task: Task, says: Sequence[str]) -> _Once:
    ran = await rehearsal.run(handler, task, says)
    return _Once(ran, await rehearsal.score(handler, task, ran))


def _difference(one: Ran, other: Ran, volatile: Sequence[str]) -> WorldDifference | None:
    """The first difference of two runs: of the prompt, of an answer, or of what is handed to EVAL."""
    if one.trajectory is None or other.trajectory is None:
        return export_difference(one.export, other.export, 0, volatile)
    prompts = _prompt(one.trajectory), _prompt(other.trajectory)
    if prompts[0] != prompts[1]:
        return differing(0, None, "the prompt", *prompts)
    turns = one.trajectory.turns
    found = first_difference([of_trajectory(turn) for turn in turns], other.trajectory, volatile)
    return found or export_difference(one.export, other.export, max(0, len(turns) - 1), volatile)


def _prompt(trajectory: Trajectory) -> str:
    return trajectory.segments[0].prompt_text if trajectory.segments else ""


def told(found: Sequence[Repeated]) -> str:
    """A table with a row for each example, and below it what differed first in each that is flaky."""
    head = ("family", "example", "runs", "other worlds", "rewards", "")
    rows: list[tuple[Any, ...]] = [
        (each.family, each.example, each.runs, each.worlds, _rewards(each), "FLAKY" if each.flaky else "same")
        for each in found
    ]
    parts = [table(head, rows)]
    for each in found:
        where = f"{each.family}, example {each.example}"
        if each.error is not None:
            parts.append(f"{where}: {each.error}")
        if each.first is not None:
            parts.append(f"{where}, {place(each.first)}:\n" + "\n".join(f"  {line}" for line in each.first.lines))
        if each.scores_differ:
            parts.append(f"{where}: the same policy is scored differently ({_rewards(each)})")
    if any(each.flaky for each in found):
        parts.append("What to do about a flaky family: docs/howto/task_family.md")
    return "\n\n".join(parts)


def reason(each: Repeated) -> str:
    """The flakiness of an example in a few words."""
    what = f"{each.worlds} of {each.runs - 1} repeats differ"
    if each.error is not None:
        what = each.error
    elif each.first is not None:
        what += f", first at {place(each.first)}"
    elif each.scores_differ:
        what = f"the same policy is scored differently: {_rewards(each)}"
    return sendable(f"example {each.example}: {what}")


def place(difference: WorldDifference) -> str:
    """Place at which two worlds differ first."""
    call = "" if difference.call is None else f", call {difference.call}"
    return f"turn {difference.turn}{call}, {difference.what}"


def _rewards(each: Repeated) -> str:
    texts = ", ".join(f"{reward:g}" for reward in each.scores) or "-"
    return f"{texts}; parts differ" if each.scores_differ and len(each.scores) == 1 else texts
