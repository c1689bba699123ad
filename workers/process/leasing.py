"""Leases for jobs that take long: most of what ends soon after its read is committed without one.

A job gets its lease when it has run for `AFTER_S`, before it makes or uses anything that others must know as its own (a
sandbox, a backend, a stored trajectory), or by the heartbeat.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.items import Entry, Lane
from prorl_mq.store.store import BATCH, Store, batched
from workers import metrics
from workers.process.slots import Slot, Slots
from workers.stages.work import Work

log = logging.getLogger("workers.process.leasing")

AFTER_S: Final = 0.1
AGAIN_S: Final = 0.1  # after a job was past its deadline: a duty of the API tells it to stop


class Leasing:
    """The leasing loop of one worker."""

    def __init__(self, store: Store, slots: Slots, *, lease_ms: int) -> None:
        self._store = store
        self._slots = slots
        self._lease_ms = lease_ms
        self._young: deque[Slot] = deque()  # oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._asked: list[Slot] = []
        self._some = asyncio.Event()

    def watch(self, slot: Slot) -> None:
        """A job that was begun without a lease. It costs nothing where it ends soon: one timer serves all."""
        self._young.append(slot)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AFTER_S, self._look)

    async def hold(self, work: Work) -> None:
        """Returns when the job has its lease. Where that is refused the job is stopped, so that this never returns."""
        slot = self._slots.held.get((work.held.ref, work.held.token))
        if slot is None or slot.leased:
            return
        slot.waiting = slot.waiting or asyncio.get_running_loop().create_future()
        self._ask([slot])
        await asyncio.shield(slot.waiting)

    async def run(self) -> None:
        """Leases until it is cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            asked, self._asked = self._asked, []
            await self._lease(asked)

    def _ask(self, slots: list[Slot]) -> None:
        self._asked += slots
        self._some.set()

    def _look(self) -> None:
        """Asks for the leases of those that have become old."""
        old, before = [], monotonic() - AFTER_S
        while self._young and (self._young[0].ended or self._began(self._young[0]) <= before):
            old.append(self._young.popleft())
        if old:
            self._ask(old)
        self._timer = None
        if self._young:
            wait_s = self._began(self._young[0]) - before
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _began(self, slot: Slot) -> float:
        return slot.work.held.read_at or 0.0

    async def _lease(self, slots: Iterable[Slot]) -> None:
        by_lane: dict[Lane, list[Slot]] = defaultdict(list)
        for slot in dict.fromkeys(slots):
            if not (slot.ended or slot.lost or slot.leased):
                by_lane[slot.work.held.lane].append(slot)
        for lane, found in by_lane.items():
            for chunk in batched(found, BATCH):
                await self._claim(lane, chunk)

    async def _claim(self, lane: Lane, slots: list[Slot]) -> None:
        helds = [slot.work.held for slot in slots]
        entries = [Entry(slot.work.held.ref, slot.work.held.entry, slot.work.claim) for slot in slots]
        budgets, held_ms = [slot.work.budget_ms for slot in slots], [held.ms for held in helds]
        try:
            claims = await self._store.claim(
                lane.stage, lane.node, entries, budgets, self._lease_ms, lane.family, held_ms, front=lane.front
            )
        except RedisUnavailable:
            raise
        except Exception:
            if len(slots) > 1:
                for slot in slots:
                    await self._claim(lane, [slot])
                return
            log.exception("job=%s: it cannot be leased, and is stopped", helds[0].ref)
            self._slots.lose(slots[0].title)
            return
        for slot, claim in zip(slots, claims, strict=True):
            self._answered(slot, claim.status)

    def _answered(self, slot: Slot, status: str) -> None:
        """`stale` and `gone` are also said of a job whose commit was faster."""
        if status in {"claimed", "already"}:
            slot.got_lease()
        elif status == "expired":
            asyncio.get_running_loop().call_later(AGAIN_S, self._ask_again, slot)
        elif not slot.ended and not slot.lost:
            log.warning("lease refused job=%s answer=%s", slot.work.held.ref, status)
            metrics.leases_lost.inc()
            self._slots.lose(slot.title)

    def _ask_again(self, slot: Slot) -> None:
        if self._slots.held.get(slot.title) is slot:
            self._ask([slot])
