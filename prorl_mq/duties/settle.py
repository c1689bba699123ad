"""Settlement: a group that is due gets its verdict, once."""

from functools import partial

from prorl_mq.duties.apart import Apart
from prorl_mq.process.tracing import Tracing
from prorl_mq.rules import records
from prorl_mq.rules.groups import Withdrawal, counting
from prorl_mq.rules.records import Group
from prorl_mq.schema.ids import BatchRef, GroupRef, run_of
from prorl_mq.schema.items import Settlement
from prorl_mq.schema.messages import events
from prorl_mq.service import cancel, judge
from prorl_mq.store import groups
from prorl_mq.store.store import Store

AT_ONCE = 32
IDLE_BLOCK_MS = 1_000


class Settling:
    """The settling loop. `linger_ms`: how long an ended job still answers `already` to a late commit."""

    def __init__(self, store: Store, *, linger_ms: int, tracing: Tracing | None = None) -> None:
        self.store = store
        self.tracing = tracing
        self.linger_ms = linger_ms
        self._apart = Apart(store, "settle")

    async def turn(self) -> float:
        """Settles what is due, oldest first; blocks while nothing is."""
        due = await groups.due(self.store, limit=AT_ONCE, block_ms=IDLE_BLOCK_MS)
        found = await groups.read(self.store, [ref for _, ref in due])
        for (entry, ref), stored in zip(due, found, strict=True):
            await self._apart.do(run_of(ref), partial(self._settle, entry, ref, records.whole(stored)))
        return 0.0

    async def _settle(self, entry: str, ref: GroupRef, group: Group | None) -> None:
        if group is not None and group.stored.open:
            await self._look_early(group)
        if group is not None and group.reserved and not group.stored.open:
            answer = await judge.settle(self.store, entry, group, linger_ms=self.linger_ms)
        else:
            answer = await self.store.settle(settlement(entry, ref, group), linger_ms=self.linger_ms)
        if self.tracing is not None and group is not None and group.spec.trace and is_cursor(answer):
            for sample in group.samples:
                line = group.stored.timelines.get(sample.index, "")
                self.tracing.rollout(group.spec.trace, sample, events(sample.job_id, line))

    async def _look_early(self, group: Group) -> None:
        """A group that is due before its last sample: what is left of it may not be needed. The entry goes after."""
        why = await self._enough(group)
        if why is not None:
            await cancel.cancel_groups(self.store, {group.ref: group.batch}, why)

    async def _enough(self, group: Group) -> Withdrawal | None:
        if group.spec.accept is not None and counting(group.samples) >= group.spec.accept:
            return Withdrawal.ENOUGH
        if group.reserved and await judge.hopeless(self.store, group):
            return Withdrawal.DROPPED
        return None


def is_cursor(answer: str) -> bool:
    """Whether a group was published: its settlement is then answered with its place in the result stream."""
    return answer[:1].isdigit()


def settlement(entry: str, ref: GroupRef, group: Group | None) -> Settlement:
    """The verdict on a group of a plain batch. One that is gone or published gets one that does nothing."""
    if group is None:
        return Settlement(entry, ref, BatchRef(""), 0, "")
    decision = group.decide()
    if decision.verdict is None:
        return Settlement(entry, ref, group.batch, group.stored.jobs, group.stored.changes, wanted=decision.wanted)
    return records.closing(entry, group, decision.verdict, decision.reason)
