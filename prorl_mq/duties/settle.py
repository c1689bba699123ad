"""Settlement: a group that is due gets its verdict, once."""

from collections.abc import Sequence
from functools import partial

from prorl_mq.duties.apart import Apart
from prorl_mq.duties.tasks import Tasks
from prorl_mq.process.tracing import Tracing
from prorl_mq.rules import records
from prorl_mq.rules.filter_threads import FilterBusy
from prorl_mq.rules.records import Group
from prorl_mq.schema.ids import BatchRef, GroupRef, RunRef, run_of
from prorl_mq.schema.items import Settlement
from prorl_mq.schema.messages import events
from prorl_mq.service import judge
from prorl_mq.store import groups
from prorl_mq.store.groups import Due
from prorl_mq.store.store import Store

AT_ONCE = 256
IDLE_BLOCK_MS = 1_000
PATIENCE_S = 0.2  # how long one turn waits for a run; what takes longer continues beside the next turns
SLOW_LOOK_S = 0.05
START = "0"


class Settling:
    """The settling loop. `linger_ms`: how long an ended job still answers `already` to a late commit.

    Each run's groups are settled in order, in a task of the run's own: a filter that hangs, or a group that cannot be
    read, delays the groups of its own run alone.
    """

    def __init__(self, store: Store, *, linger_ms: int, tracing: Tracing | None = None) -> None:
        self.store = store
        self.tracing = tracing
        self.linger_ms = linger_ms
        self._apart = Apart(store, "settle")
        self._after = START
        self._busy = Tasks[RunRef]()

    async def turn(self) -> float:
        """Settles what is due, oldest first; blocks while nothing is. Raises what Redis does to a run's calls."""
        block_ms = IDLE_BLOCK_MS if self._after == START else 1
        page = await groups.due(self.store, after=self._after, limit=AT_ONCE, block_ms=block_ms)
        self._after = page[-1].entry if len(page) == AT_ONCE else START
        fresh: dict[RunRef, list[Due]] = {}
        for each in page:
            run = run_of(each.ref)
            if run not in self._busy and not self._apart.left_out(run):
                fresh.setdefault(run, []).append(each)
        for run, due in fresh.items():
            self._busy.start(run, self._apart.do(run, partial(self._settle_all, due)))
        await self._busy.wait(within_s=PATIENCE_S, of=fresh)
        return 0.0 if fresh or not page else SLOW_LOOK_S

    async def aclose(self) -> None:
        """Stops what still runs. Its groups stay due."""
        await self._busy.cancel()

    async def _settle_all(self, due: Sequence[Due]) -> None:
        found = await groups.read(self.store, [ref for _, ref in due])
        busy: FilterBusy | None = None
        for (entry, ref), stored in zip(due, found, strict=True):
            try:
                await self._settle(entry, ref, records.whole(stored))
            except FilterBusy as error:  # this group stays due, and those behind it are settled
                busy = error
        if busy is not None:
            raise busy

    async def _settle(self, entry: str, ref: GroupRef, group: Group | None) -> None:
        if group is not None and group.reserved and not group.stored.open:
            answer = await judge.settle(self.store, entry, group, linger_ms=self.linger_ms)
        else:
            answer = await self.store.settle(settlement(entry, ref, group), linger_ms=self.linger_ms)
        if self.tracing is not None and group is not None and group.spec.trace and is_cursor(answer):
            for sample in group.samples:
                line = group.stored.timelines.get(sample.index, "")
                self.tracing.rollout(group.spec.trace, sample, events(sample.job_id, line))


def is_cursor(answer: str) -> bool:
    """True if a group was published: its settlement is then answered with its place in the result stream."""
    return answer[:1].isdigit()


def settlement(entry: str, ref: GroupRef, group: Group | None) -> Settlement:
    """The verdict on a group of a plain batch. One that is gone or published gets one that does nothing."""
    if group is None:
        return Settlement(entry, ref, BatchRef(""), 0, "")
    decision = group.decide()
    if decision.verdict is None:
        return Settlement(entry, ref, group.batch, group.stored.jobs, group.stored.changes, wanted=decision.wanted)
    return records.closing(entry, group, decision.verdict, decision.reason)
