"""Replenishment: draws groups until a DAPO batch reaches its target, then closes it."""

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from prorl_mq.clock import monotonic
from prorl_mq.duties.apart import Apart
from prorl_mq.rules import dapo_report
from prorl_mq.rules.dapo import closing_reason, standing, to_draw
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.rules.turns import Turns
from prorl_mq.schema.codec import encode
from prorl_mq.schema.dapo import Phase, Reservoir, Surplus
from prorl_mq.schema.ids import BatchRef, GroupRef, RunRef, run_of
from prorl_mq.service import cancel, judge
from prorl_mq.store import batches, bells, groups, policy
from prorl_mq.store.batches import Batch, DrawPlan, InPlay
from prorl_mq.store.store import Store, batched

IDLE_BLOCK_S: Final = 1.0
PAUSE_S: Final = 0.005  # several verdicts ring once
SWEEP_AGAIN_S: Final = 1.0  # what was withdrawn by a process that died before it had stopped the jobs
SWEEP_AGAIN_MOST_S: Final = 32.0
RUNS: Final = 64  # that have their turn at one look around
AT_ONCE: Final = 1_024
SLICE: Final = 256


class Sweep(NamedTuple):
    """Groups that this process has withdrawn in one sweep; the next one follows in case its cancels were cut short."""

    done: frozenset[GroupRef]
    again_at: float
    pause_s: float


NEVER: Final = Sweep(frozenset(), 0.0, SWEEP_AGAIN_S)


class Replenishing:
    """The drawing loop. It remembers which batches there are and what it has withdrawn; losing that costs one look at
    all of them.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sweeps: dict[str, Sweep] = {}
        self._apart = Apart(store, "draw")
        self._turns = Turns[RunRef](RUNS)
        self._open: dict[RunRef, dict[BatchRef, None]] = {}
        self._changed: list[BatchRef] = []
        self._round_at = 0.0

    async def turn(self) -> float:
        """Looks at what has changed, and now and then at others in turn; then waits until a batch changes."""
        if monotonic() >= self._round_at:
            await self.look_around()
        else:
            await self._look_at_changed()
        changed = await bells.to_draw(self.store, within_s=max(0.001, self._round_at - monotonic()))
        if changed is None:  # marks are lost: all are looked at
            self._turns, self._round_at = Turns[RunRef](RUNS), 0.0
        self._changed += changed or []
        return PAUSE_S

    async def look_around(self) -> None:
        """Takes batches one step on, those of `RUNS` runs and those that have changed, a run's oldest first."""
        found: dict[RunRef, dict[BatchRef, None]] = {}
        for ref in await batches.not_closed(self.store):
            found.setdefault(run_of(ref), {})[ref] = None
        self._open = found
        await self._look_at_changed(self._turns.of(found))
        await self._expire()
        old = monotonic() - SWEEP_AGAIN_MOST_S
        self._sweeps = {name: sweep for name, sweep in self._sweeps.items() if sweep.again_at > old}
        self._round_at = monotonic() + IDLE_BLOCK_S

    async def _look_at_changed(self, others: Iterable[RunRef] = ()) -> None:
        """Looks at all batches of the runs: a change of one may concern the others, by what it leaves or takes."""
        for ref in self._changed:
            self._open.setdefault(run_of(ref), {})[ref] = None
        for run in dict.fromkeys([*map(run_of, self._changed), *others]):
            for ref in self._open.get(run, ()):
                await self._apart.do(run, partial(self._look_at, ref))
        self._changed = []

    async def _look_at(self, ref: BatchRef) -> None:
        await self._step((await batches.look(self.store, [ref]))[ref])

    async def _step(self, batch: Batch) -> None:
        if batch.plan is None or batch.phase == Phase.CLOSED:
            await batches.forget(self.store, batch.ref)
        elif batches.is_open(batch):
            await self._fill(batch, batch.plan)
        else:
            await self._wind_up(batch, batch.plan)

    async def _fill(self, batch: Batch, plan: DrawPlan) -> None:
        if batch.accepted >= plan.dapo.target_groups:
            await judge.full(self.store, batch, plan)
            return
        if await self._adopt(batch, plan):
            return  # their verdicts come first, and ring
        ordered = plan.dapo.surplus is Surplus.ORDERED
        now = await batches.progress(self.store, batch, plan)
        if closing_reason(plan.dapo, now) == "exhausted":
            await self.store.halt(batch.ref, "exhausted")
            return
        if ordered:
            await self._sort_out(batch, plan, await batches.in_play(self.store, batch.ref))
        await self._draw(batch, plan, to_draw(plan.dapo, now))

    async def _adopt(self, batch: Batch, plan: DrawPlan) -> bool:
        """Takes the run's whole carry-over over, but for what has become too old; whether some of it is due."""
        run = run_of(batch.ref)
        refs = await groups.carried(self.store, run)
        if not refs:
            return False
        stale = await self._stale(plan, refs)
        left = await groups.batches_of(self.store, [ref for ref in refs if ref not in stale])
        due = [await self.store.adopt(batch.ref, dict(chunk)) for chunk in batched(left.items())]
        await self._withdraw(f"stale {run}", stale, Withdrawal.STALE)
        return any(count > 0 for count in due)

    async def _stale(self, plan: DrawPlan, refs: list[GroupRef]) -> set[GroupRef]:
        newest = (await policy.announced(self.store, plan.pool)).version
        if plan.max_staleness is None or newest is None:
            return set()
        oldest = newest - plan.max_staleness
        return {ref for ref, version in (await groups.versions(self.store, refs)).items() if version < oldest}

    async def _sort_out(self, batch: Batch, plan: DrawPlan, in_play: list[InPlay]) -> None:
        found = standing(
            [(each.ref, each.parked) for each in in_play],
            accepted=batch.accepted,
            target=plan.dapo.target_groups,
        )
        for chunk in batched(found.accept):
            await self.store.wake(batch.ref, chunk)
        await self._withdraw(f"reject {batch.ref}", found.reject, Withdrawal.UNNEEDED)

    async def _draw(self, batch: Batch, plan: DrawPlan, count: int) -> None:
        """The batch's own groups first."""
        drawn = batch.drawn
        sources: list[BatchRef | RunRef] = [batch.ref]
        sources += [run_of(batch.ref)] if plan.dapo.reservoir is Reservoir.RUN else []
        version = (await policy.announced(self.store, plan.pool)).version if count else None
        for source in sources:
            if count <= 0:
                return
            for chunk in batched(await groups.waiting(self.store, source, limit=count)):
                origins = await groups.batches_of(self.store, chunk)
                answer = await self.store.draw(batch.ref, source, origins, drawn=drawn, version=version)
                if answer < 0:
                    return
                drawn, count = drawn + answer, count - answer

    async def _wind_up(self, batch: Batch, plan: DrawPlan) -> None:
        """Nothing more counts: what is left ends, and the report follows the last record."""
        why = Withdrawal.CANCEL if batch.reason == "cancelled" else Withdrawal.UNNEEDED
        undrawn = await groups.waiting(self.store, batch.ref, limit=AT_ONCE)
        for chunk in batched(undrawn, SLICE):
            await cancel.cancel_groups(self.store, dict.fromkeys(chunk, batch.ref), why)
        left = f"left {batch.ref}"
        if self._sweeps.get(left, NEVER).again_at <= monotonic():  # an ending batch gets no more groups
            in_play = await batches.in_play(self.store, batch.ref)
            await self._withdraw(left, [each.ref for each in in_play], why)
        if batch.closed >= batch.stored + batch.joined:
            await self._close(batch, plan)
        elif len(undrawn) == AT_ONCE:
            await bells.ring_draw(self.store, batch.ref)

    async def _close(self, batch: Batch, plan: DrawPlan) -> None:
        _, run_id, batch_id = batch.ref.split(":")
        seconds = (await self.store.now_ms() - batch.submitted_ms) / 1000
        reason = dapo_report.reason(batch.reason)
        made = dapo_report.report(run_id, batch_id, plan.dapo, reason, batch.numbers, seconds=seconds)
        await self.store.close(batch.ref, encode(made), groups=batch.closed)

    async def _expire(self) -> None:
        """A carry-over that no batch took over in time."""
        for run in await groups.expired_carries(self.store):
            await self._apart.do(run, partial(self._end_carry, run))

    async def _end_carry(self, run: RunRef) -> None:
        refs = await groups.carried(self.store, run, limit=AT_ONCE)
        await self._withdraw(f"unadopted {run}", refs, Withdrawal.UNADOPTED)

    async def _withdraw(self, name: str, refs: Iterable[GroupRef], why: Withdrawal) -> None:
        """Ends groups: new ones at once, and all of them again now and then, ever more seldom."""
        last = self._sweeps.get(name, NEVER)
        again = last.again_at <= monotonic()
        done = frozenset[GroupRef]() if again else last.done
        fresh = [ref for ref in refs if ref not in done]
        if not fresh:
            return
        belong = await groups.batches_of(self.store, fresh)
        for chunk in batched(belong.items(), SLICE):
            await cancel.cancel_groups(self.store, dict(chunk), why)
        pause_s = min(SWEEP_AGAIN_MOST_S, 2 * last.pause_s) if again else last.pause_s
        again_at = monotonic() + last.pause_s if again else last.again_at
        self._sweeps[name] = Sweep(done.union(fresh), again_at, pause_s)
