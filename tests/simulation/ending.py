"""What must hold at the end of every history: records whole and once, nothing held, no key without an owner."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from prorl_mq.schema.lifecycle import COUNTS
from prorl_mq.schema.messages import GroupRecord, Outcome, Verdict
from prorl_mq.service.fsck.look import look
from prorl_mq.store.core import Command
from tests.simulation.work import RUN, RUN_ID

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_S: Final = 12.0  # for a sweep to remove what is left


async def check_end(world: "World") -> None:
    """Adds a finding for each thing that does not hold."""
    if not world.oracle.violations:  # else the model knows nothing of what came after the first
        _records(world)
    for fault in world.family.faults:
        world.finding("an attempt does not continue where another one ended", fault)
    give_up = world.loop.time() + PATIENCE_S
    while (left := await leftovers(world)) and world.loop.time() < give_up:
        await asyncio.sleep(0.25)
    if left:
        world.finding("something is left after the last ack", "; ".join(left))


def _records(world: "World") -> None:
    """Every submitted group has one record, which lists every sample that was ever admitted."""
    closed = [each.record for each in world.trainer.closed]
    submitted = {group.group_id for each in world.trainer.requests for group in each.groups}
    times = Counter(record.group_id for record in closed)
    if times != Counter(submitted):
        world.finding("not one record for each group", f"{sorted(times.items())} of {sorted(map(str, submitted))}")
    for record in [*closed, *world.forks.records]:
        fault = _fault(record, world.oracle.published.get(f"{RUN}:{record.group_id}", {0})) or _early(record, world)
        if fault:
            world.finding("a record is wrong", f"{RUN_ID}:{record.group_id} {fault}")


def _fault(record: GroupRecord, admitted: set[int]) -> str:
    """`admitted`: how many samples the group had had when it was published; several, where a publication was lost."""
    listed = [sample.index for sample in record.samples]
    if listed != list(range(len(listed))) or len(listed) not in admitted:
        return f"lists samples {listed} of {admitted} admitted: {record.verdict} ({record.reason})"
    counting = sum(sample.outcome in COUNTS for sample in record.samples)
    if record.verdict is Verdict.ACCEPTED and counting < record.n:
        return f"is accepted with {counting} of {record.n} samples that count"
    return ""


def _early(record: GroupRecord, world: "World") -> str:
    """Jobs are not older than the history: a clock that was set makes none expire."""
    expired = [sample.index for sample in record.samples if sample.outcome is Outcome.EXPIRED]
    young = world.loop.time() * 1000 < world.options.total_ms
    return f"has expired samples {expired} before their deadline" if expired and young else ""


async def leftovers(world: "World") -> list[str]:
    """What violates an invariant, and work that is not over; keys of the foreign tenant's faults are left out."""
    report = await look(AtEnd(world), still=True)
    found = [str(each) for each in report.violations if ":other" not in each.key]
    return found if report.idle else [*found, f"work is open: {report}"]


class AtEnd:
    """The history's server, read beside its network at the time that it is."""

    def __init__(self, world: "World") -> None:
        self.keys = world.keys
        self._network, self._loop = world.network, world.loop

    async def read_many(self, commands: Sequence[Command]) -> list[Any]:
        self._network.server.set_time(self._network.wall_us, self._loop.now_us)
        return [self._network.server.call(tuple(command)) for command in commands]

    read_at_once = read_many
