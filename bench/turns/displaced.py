"""Parts of the time in which a rollout whose node was lost stands still, by its time line."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Event, GroupRecord, Stage, events

AIM_S: Final = 5.0
PARTS: Final = (
    "its last request until the loss",
    "the loss until it waits for INIT",
    "wait for INIT",
    "INIT",
    "wait for a RUN slot",
    "RUN until its next request",
)

ENDS: Final = (  # events of all parts but the first and the last one
    {(Verb.REAP, Stage.INIT), (Verb.EVACUATE, Stage.INIT)},
    {(Verb.CLAIM, Stage.INIT)},
    {(Verb.ADVANCE, Stage.RUN)},
    {(Verb.CLAIM, Stage.RUN)},
)


def standstills(
    losses: Sequence[float], asked: Mapping[str, Sequence[float]], records: Sequence[GroupRecord], lease_s: float
) -> list[list[float]]:
    """Seconds of each part, for each rollout that a loss stopped. Those of the other node ask on, within a lease."""
    ahead_s = time.time() - time.monotonic()  # of the service's clock
    lines = {record.task_id: _line(record) for record in records}
    found = []
    for task, moments in asked.items():
        for before, after in _gaps(losses, moments, lease_s):
            loss = next(lost for lost in losses if before <= lost < after)
            found.append(_parts(before, loss, after, lines.get(task, []), ahead_s))
    return found


def table(found: Sequence[Sequence[float]]) -> str:
    """Rows of each part, and of all of it."""
    if not found:
        return "no rollout was displaced"
    columns = [*zip(*found, strict=True), tuple(map(sum, found))]
    rows = [
        f"| {name} | {statistics.median(each):.2f} | {max(each):.2f} |"
        for name, each in zip([*PARTS, "all of it"], columns, strict=True)
    ]
    soon = sum(sum(each) <= AIM_S for each in found)
    head = f"| {len(found)} rollouts, {soon} within {AIM_S:.0f} s | median | at most |"
    return "\n".join([head, "|---|--:|--:|", *rows])


def _line(record: GroupRecord) -> list[Event]:
    return [each for job, text in record.timelines.items() for each in events(job, text)]


def _gaps(losses: Sequence[float], moments: Sequence[float], lease_s: float) -> Iterator[tuple[float, float]]:
    for before, after in pairwise(sorted(moments)):
        if after - before > lease_s and any(before <= lost < after for lost in losses):
            yield before, after


def _parts(before: float, loss: float, after: float, line: Sequence[Event], ahead_s: float) -> list[float]:
    """Each part ends with the last event of its kind. One without such an event took no time: an INIT that was over
    before it was leased counts with the wait for it.
    """
    ends = [loss]
    for kinds in ENDS:
        moments = (each.ms / 1000 - ahead_s for each in line if (each.event, each.stage) in kinds)
        ends.append(max([ends[-1], *(moment for moment in moments if loss < moment < after)]))
    return [loss - before, *(later - earlier for earlier, later in pairwise([*ends, after]))]
