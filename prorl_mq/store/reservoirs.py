"""The verbs of dynamic sampling: one typed method for each script. Each may be sent twice."""

from collections.abc import Mapping, Sequence

from prorl_mq.rules.dapo import Phase
from prorl_mq.rules.dapo_report import Reason
from prorl_mq.schema.ids import BatchRef, GroupRef, RunRef, run_of
from prorl_mq.store.store import DAY_MS, Store


class Reservoirs:
    """Groups on their way from a reservoir through a batch, or on to the next one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.keys = store.keys

    async def draw(
        self,
        batch: BatchRef,
        source: BatchRef | RunRef,
        groups: Mapping[GroupRef, BatchRef],
        *,
        drawn: int,
        version: int | None = None,
    ) -> int:
        """Moves groups, each with the batch that brought it, from a reservoir to the backlog: how many, or -1.

        `drawn` is how many the batch had drawn when the caller looked: two callers never draw for one look.
        """
        keys, run = self.keys, run_of(batch)
        names = [keys.batch(batch), keys.reservoir(source), keys.drawn(batch), keys.run(run), keys.backlog(run)]
        names.append(keys.admit_bell)
        for group, origin in groups.items():
            names += (keys.group(group), keys.batch(origin))
        arguments = {"batch": batch, "open": Phase.OPEN, "drawn": drawn, "version": version, "items": list(groups)}
        return int(await self.store.call("draw", names, arguments))

    async def adopt(self, batch: BatchRef, groups: Sequence[GroupRef]) -> int:
        """Gives groups of the run's carry-over to a batch: how many of them are due, or -1 when it takes none."""
        keys, run = self.keys, run_of(batch)
        names = [keys.batch(batch), keys.carried(run), keys.drawn(batch), keys.due, keys.carrying]
        names += map(keys.group, groups)
        arguments = {"batch": batch, "run": run, "open": Phase.OPEN, "items": list(groups)}
        return int(await self.store.call("adopt", names, arguments))

    async def wake(self, groups: Sequence[GroupRef]) -> int:
        """Makes parked groups due again: how many were parked."""
        names = [self.keys.due, *map(self.keys.group, groups)]
        return int(await self.store.call("wake", names, {"items": list(groups)}))

    async def halt(self, batch: BatchRef, reason: Reason, *, carry: bool = False, keep_ms: int = 0) -> str:
        """Ends a batch's draws and acceptances: `halted` or `already`. `carry`: the rest goes on without it."""
        keys, run = self.keys, run_of(batch)
        names = [keys.batch(batch), keys.drawn(batch), keys.carried(run), keys.carrying, keys.draw_bell]
        names.append(keys.counters)
        arguments = {
            "open": Phase.OPEN, "ending": Phase.ENDING, "reason": reason, "run": run, "carry": carry,
            "keep_ms": keep_ms,
        }  # fmt: skip
        answer: bytes = await self.store.call("halt", names, arguments)
        return answer.decode()

    async def close(self, batch: BatchRef, report: bytes, *, groups: int) -> str:
        """Publishes a batch's report: its id, `already`, or `open` when it has other than `groups` closed groups."""
        keys = self.keys
        names = [keys.batch(batch), keys.results(run_of(batch)), keys.dapo, keys.run(run_of(batch))]
        arguments = {
            "batch": batch, "ending": Phase.ENDING, "closed": Phase.CLOSED, "groups": groups, "ttl_ms": 7 * DAY_MS,
        }  # fmt: skip
        answer: bytes = await self.store.call("close", names, arguments, report)
        return answer.decode()
