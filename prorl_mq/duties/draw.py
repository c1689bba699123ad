"""Replenishment: draws groups until a DAPO batch reaches its target, then closes it."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.duties.apart import Apart
from prorl_mq.rules import dapo_report
from prorl_mq.rules.dapo import closing_reason, standing, to_draw
from prorl_mq.rules.groups import Withdrawal
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
AT_ONCE: Final = 1_024
SLICE: Final = 256


class Replenishing:
    """The drawing loop. Its memory is only when it last swept; losing it costs one sweep."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sweep_at: dict[str, float] = {}
        self._apart = Apart(store, "draw")

    async def turn(self) -> float:
        """Looks around, then waits until a batch changes."""
        await self.look_around()
        await bells.until_draw(self.store, IDLE_BLOCK_S)
        return PAUSE_S

    async def look_around(self) -> None:
        """Takes each batch one step on, oldest first."""
        for ref in await batches.not_closed(self.store):
            await self._apart.do(run_of(ref), partial(self._look_at, ref))
        await self._expire()
        self._sweep_at = {name: at for name, at in self._sweep_at.items() if at > monotonic()}

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
        in_play = await batches.in_play(self.store, batch.ref, parked=ordered)
        now = await batches.progress(self.store, batch, plan, in_play)
        if closing_reason(plan.dapo, now) == "exhausted":
            await self.store.halt(batch.ref, "exhausted")
            return
        if ordered:
            await self._sort_out(batch, plan, in_play)
        await self._draw(batch, plan, to_draw(plan.dapo, now))

    async def _adopt(self, batch: Batch, plan: DrawPlan) -> bool:
        """Takes the run's whole carry-over over, but for what has become too old; whether some of it is due."""
        run = run_of(batch.ref)
        refs = await groups.carried(self.store, run)
        if not refs:
            return False
        stale = await self._stale(plan, refs)
        chunks = batched([ref for ref in refs if ref not in stale])
        due = [await self.store.adopt(batch.ref, chunk) for chunk in chunks]
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
            await self.store.wake(chunk)
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
        in_play = await batches.in_play(self.store, batch.ref, parked=False)
        await self._withdraw(f"left {batch.ref}", [each.ref for each in in_play], why)
        if batch.closed >= batch.stored + batch.joined:
            await self._close(batch, plan)
        elif len(undrawn) == AT_ONCE:
            await bells.ring_draw(self.store)

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

    async def _withdraw(self, sweep: str, refs: "set[GroupRef] | list[GroupRef]", why: Withdrawal) -> None:
        """Ends groups: new ones at once, and all of them again now and then."""
        if not refs:
            return
        fresh: Mapping[GroupRef, BatchRef] = await groups.batches_of(self.store, list(refs))
        if self._sweep_at.get(sweep, 0.0) > monotonic():
            told = await groups.withdrawn(self.store, list(fresh))
            fresh = {ref: batch for ref, batch in fresh.items() if ref not in told}
        else:
            self._sweep_at[sweep] = monotonic() + SWEEP_AGAIN_S
        for chunk in batched(fresh.items(), SLICE):
            await cancel.cancel_groups(self.store, dict(chunk), why)
