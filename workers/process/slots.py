"""The jobs that this process holds, each with its lease, the task that performs it and how it must end."""

import asyncio
from dataclasses import dataclass
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Lane, Lease
from workers.stages.work import Move, Work

Title = tuple[JobRef, Token]
EARLY_S: Final = 30.0  # how long news of a job that is not held yet are kept


@dataclass(slots=True, eq=False)
class Slot:
    """One held job. It is held until its end is answered, not only until its handler returns. Until it is `leased` the
    entry that its worker has read is its only title to the job.
    """

    work: Work
    leased: bool = False
    waiting: "asyncio.Future[None] | None" = None  # for the lease
    performing: "asyncio.Task[Move] | None" = None  # may be cancelled at any moment, also before its first step
    closing: "asyncio.Task[None] | None" = None  # undoes, confirms or gives the job back, where no commit ended it
    ending: str | None = None  # cancelled or expired: the job must be stopped and confirmed
    told_at: float = 0.0
    cut: asyncio.TimerHandle | None = None  # its job is to be paused; when it is stopped at the latest
    lost: bool = False  # the lease is gone: stop at once, commit nothing
    stopped: bool = False

    @property
    def title(self) -> Title:
        return self.work.held.ref, self.work.held.token

    @property
    def ended(self) -> bool:
        """True if the stage has returned or was stopped, so that only the job's end remains to be committed."""
        return self.performing is None or self.performing.done()

    def got_lease(self) -> None:
        """Idempotent."""
        self.leased = True
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def stop(self) -> bool:
        """Cancels what runs, once: a second cancel would cut the clean-up short. False where that was done before."""
        first, self.stopped = not self.stopped, True
        if first and self.performing is not None:
            self.work.left.leaves = self.ending is None and not self.lost
            if self.work.left.detach is not None:
                self.work.left.detach()
            self.performing.cancel()
        return first


class Slots:
    """A fixed number of places. Read by the heartbeat's thread, changed by the event loop alone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.held: dict[Title, Slot] = {}
        self._early: dict[Title, tuple[str, float]] = {}
        self._changed = asyncio.Event()
        self._given_at = monotonic()

    @property
    def idle_s(self) -> float:
        """For how long nothing has been held."""
        return 0.0 if self.held else monotonic() - self._given_at

    @property
    def free(self) -> int:
        return self.count - len(self.held)

    def take(self, work: Work) -> Slot | None:
        """A place for a job; None where it has one already. One that was told to stop before is ending."""
        slot = Slot(work)
        if self.held.setdefault(slot.title, slot) is not slot:
            return None
        if self._early and (told := self._early.pop(slot.title, None)):
            slot.ending, slot.told_at = told
        return slot

    def give(self, slot: Slot) -> None:
        """Frees a place. Idempotent."""
        if self.held.get(slot.title) is slot:
            del self.held[slot.title]
            self._given_at = monotonic()
        self._changed.set()

    async def room(self) -> int:
        """Waits until a place is free; how many are."""
        while self.free <= 0:
            self._changed.clear()
            await self._changed.wait()
        return self.free

    async def empty(self) -> None:
        """Waits until nothing is held."""
        while self.held:
            self._changed.clear()
            await self._changed.wait()

    def leases(self) -> list[Lease]:
        """The jobs whose leases the heartbeat renews, or takes."""
        helds = [(slot.work.held, slot.work.budget_ms) for slot in self.held.copy().values()]
        return [Lease(held.ref, held.token, held.entry, held.lane, held.ms, budget) for held, budget in helds]

    def entries(self) -> set[tuple[Lane, EntryId]]:
        """The entries that jobs are held by, each with its stream."""
        return {(slot.work.held.lane, slot.work.held.entry) for slot in self.held.values()}

    def told(self, ref: JobRef, token: str, ending: str) -> None:
        """A job must stop: its task is cancelled, and its end is confirmed when everything is dead."""
        slot = self.held.get((ref, Token(token)))
        if slot is None:
            self._early = {title: told for title, told in self._early.items() if told[1] > monotonic() - EARLY_S}
            self._early[ref, Token(token)] = ending, monotonic()
        elif slot.ending is None and not slot.lost:
            slot.ending, slot.told_at = ending, monotonic()
            slot.stop()

    def lose(self, title: Title) -> None:
        """The job is another's: the work stops now, and its commit would be refused."""
        slot = self.held.get(title)
        if slot is not None:
            slot.lost = True
            slot.stop()
