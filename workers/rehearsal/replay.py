"""Replays rollouts: a task's INIT in a new sandbox, then the recorded turns, whose calls are made there again."""

from typing import Final

import msgspec

from prorl_mq.schema.codec import decode
from prorl_mq.schema.messages import Limits
from prorl_mq.schema.task_schema import split
from prorl_mq.schema.trajectory import HandedOver, Trajectory
from prorl_mq.service.recorded import ReplayAnswer, ReplayOrder, WorldDifference
from workers.handler import Handler, JobView, Ran, SandboxLost
from workers.rehearsal.comparing import export_difference, first_difference, of_log
from workers.rehearsal.policy import RecordedPolicy
from workers.rehearsal.stages import ROOMY, Rehearsal

SLOWER: Final = 4  # times that calls may take as long as they took, and
AT_LEAST_S: Final = 600.0


class CannotReplay(Exception):
    """The rollout cannot be replayed; the message says why."""


async def replay(handler: Handler, rehearsal: Rehearsal, order: ReplayOrder) -> ReplayAnswer:
    """Makes the calls of a rollout again. Raises `CannotReplay`, and what INIT and sandboxes raise."""
    if not order.turns:
        raise CannotReplay("it has no turn that could be replayed")
    took_s = sum(call.seconds for turn in order.turns for call in turn.calls)
    run_s = max(AT_LEAST_S, SLOWER * took_s)
    try:
        ran = await rehearsal.acted(handler, _job(handler, order), RecordedPolicy(order.turns), run_s=run_s)
    except SandboxLost as lost:
        ran = Ran(trajectory=lost.trajectory)
        if lost.trajectory is None or _difference(handler, order, ran, lost.trajectory) is None:
            raise
    again = ran.trajectory
    if again is None:
        raise CannotReplay(f"{order.task.data_source} gives no trajectory, so that nothing can be compared")
    if again.truncated_by == "time":
        raise CannotReplay(f"its calls took longer than {run_s:.0f} s, and {took_s:.0f} s when they were recorded")
    difference = _difference(handler, order, ran, again)
    whole = order.turns if difference is None else order.turns[: difference.turn]
    calls = sum(len(turn.calls) for turn in whole) + (difference.call or 0 if difference is not None else 0)
    return ReplayAnswer(job_id=order.job_id, turns=len(whole), calls=calls, difference=difference)


def _difference(handler: Handler, order: ReplayOrder, ran: Ran, again: Trajectory) -> WorldDifference | None:
    volatile = getattr(handler, "volatile", ())
    found = first_difference([of_log(turn) for turn in order.turns], again, volatile)
    if found is None and order.artefact:
        handed = decode(order.artefact, HandedOver)
        found = export_difference(handed.export, ran.export, len(order.turns) - 1, volatile)
    return found


def _job(handler: Handler, order: ReplayOrder) -> JobView:
    """The job as it was, but for limits that would end it early. Raises `InvalidTask`."""
    sampling = msgspec.structs.replace(
        ROOMY, max_turns=len(order.turns), tool_timeout_ms=order.sampling.tool_timeout_ms
    )
    return JobView(
        job_id=order.job_id,
        task_id=order.task.task_id,
        data_source=order.task.data_source,
        index=order.index,
        attempt=0,
        payload=split(handler.schema, order.task)[0],
        sampling=sampling,
        limits=Limits(),
    )
