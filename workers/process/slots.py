"""The jobs that this process holds: at most N, each with its task, its lease and how it must end."""

import asyncio
from dataclasses import dataclass

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import JobRef, Token
from workers.stages.work import Work


@dataclass(slots=True)
class Slot:
    """One held job. It is held until its commit is answered, not only until its handler returns."""

    work: Work
    task: "asyncio.Task[None] | None" = None
    ending: str | None = None  # cancelled or expired: it must be stopped and confirmed
    told_at: float = 0.0
    lost: bool = False  # the lease is gone: stop at once, commit nothing
    closing: bool = False  # the stage has returned or was stopped: what follows must not be cancelled

    def stop(self) -> None:
        """Cancels what runs. Idempotent, and without effect on a job that is being committed."""
        if self.task is not None and not self.closing:
            self.task.cancel()


class Slots:
    """A fixed number of places. Read by the heartbeat's thread, changed by the event loop alone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.held: dict[JobRef, Slot] = {}
        self._changed = asyncio.Event()
        self._given_at = monotonic()

    @property
    def idle_s(self) -> float:
        """For how long nothing has been held."""
        return 0.0 if self.held else monotonic() - self._given_at

    @property
    def free(self) -> int:
        return self.count - len(self.held)

    def take(self, work: Work) -> Slot:
        slot = Slot(work)
        self.held[work.held.ref] = slot
        return slot

    def give(self, slot: Slot) -> None:
        """Frees a place. A newer claim of the same job keeps its own."""
        if self.held.get(slot.work.held.ref) is slot:
            del self.held[slot.work.held.ref]
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

    def leases(self) -> list[tuple[JobRef, Token]]:
        """What the heartbeat renews."""
        return [(ref, slot.work.held.token) for ref, slot in self.held.copy().items()]

    def told(self, ref: JobRef, token: str, ending: str) -> None:
        """A job must stop: its task is cancelled, and confirms when everything is dead."""
        slot = self.held.get(ref)
        if slot is not None and slot.work.held.token == token and slot.ending is None and not slot.lost:
            slot.ending, slot.told_at = ending, monotonic()
            slot.stop()

    def lose(self, ref: JobRef, token: str) -> None:
        """The lease is gone: the work stops now, and its commit would be refused."""
        slot = self.held.get(ref)
        if slot is not None and slot.work.held.token == token:
            slot.lost = True
            slot.stop()
