"""Results that a trainer has acknowledged on the stream itself, and old answers, are deleted."""

import logging
from typing import Final, NamedTuple, TypeVar

from prorl_mq.schema.ids import RunRef
from prorl_mq.store import results
from prorl_mq.store.direct import consumers
from prorl_mq.store.direct.consumers import Delivered
from prorl_mq.store.store import Store

T = TypeVar("T")
log = logging.getLogger("prorl_mq.duties")
SAYS: Final = (
    "run %s: its trainer reads as %d consumers of its results, and %d are the most: %s; read under the same few names"
)
DONE: Final = {
    "thinned": "those that held nothing were ended, the longest idle first",
    "begun": "its consumer group begins again, and what was not acknowledged is given once more",
}
ANSWERS_KEPT_MS: Final = 3600 * 1000
ANSWERS_LOOK_MS: Final = 60 * 1000  # between two looks for old answers
AT_ONCE: Final = 256  # answers
ROUNDS: Final = 16  # of one look at a run: what is left has the next turn
REMEMBERED: Final = 4_096  # runs


class _Look(NamedTuple):
    """A run's group as it was when all that it had acknowledged was deleted."""

    delivered: Delivered
    waiting: tuple[str, ...]


_NEVER: Final = _Look(Delivered("0-0", 0), ())


class AcknowledgedResults:
    """A duty's memory of the runs' consumer groups: one whose group has not changed costs one read.

    Of an epoch: what was deleted in the second that a restarted server has lost is there again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epoch = ""
        self._looks: dict[RunRef, _Look] = {}
        self._answers_at: dict[RunRef, int] = {}
        self._told: dict[RunRef, frozenset[str]] = {}  # what the log has said of their consumers

    def forget_before(self, epoch: str) -> None:
        """Leaves out what was seen in an earlier epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._looks.clear()
            self._answers_at.clear()

    async def sweep(self, run: RunRef, now_ms: int) -> bool:
        """Deletes what the run's trainer has acknowledged, wherever it lies, and answers that are old.

        True where the trainer has read or acknowledged since the last look, or there is more to delete.
        """
        before, whole = self._looks.get(run), False
        for _ in range(ROUNDS):
            if whole := await self._acknowledged(run):
                break
        if whole:
            await self._bound(run)
        if now_ms - self._answers_at.get(run, 0) >= ANSWERS_LOOK_MS:
            old = await results.old_answers(self._store, run, before_ms=now_ms - ANSWERS_KEPT_MS, limit=AT_ONCE)
            await results.drop_answers(self._store, run, old)
            _remember(self._answers_at, run, now_ms if len(old) < AT_ONCE else 0)
        return not whole or self._looks.get(run) is not before

    async def _bound(self, run: RunRef) -> None:
        """Ends consumers that are more than a trainer has: their names cost memory, and no quota counts them."""
        (last, waiting, count), most = self._looks.get(run, _NEVER).delivered, consumers.CONSUMERS
        if count <= most:
            return
        done = await self._store.thin(run, most=most, last=last, waiting=waiting)
        if done == "begun":
            del self._looks[run]
        told = self._told.get(run, frozenset())
        if done in DONE and done not in told:
            log.warning(SAYS, run, count, most, DONE[done])
            _remember(self._told, run, told | {done})

    async def _acknowledged(self, run: RunRef) -> bool:
        """False when there may be more."""
        store, before = self._store, self._looks.get(run, _NEVER)
        given = await consumers.delivered(store, run)
        if given is consumers.NO_GROUP:  # a stream of an earlier release
            await consumers.create_if_room(store, run)
        if given in {None, consumers.NO_GROUP, before.delivered}:
            return True
        state = await consumers.state(store, run)
        if state is None:
            return True
        now, waiting = state
        gone = [each for each in before.waiting if not _after(each, now.last)]
        gone = sorted(set(gone).difference(waiting), key=consumers.order)
        fresh = [each for each in waiting if _after(each, before.delivered.last)]
        found = await consumers.acknowledged(store, run, before.delivered.last, now.last, fresh)
        await results.acknowledge(store, run, [*gone, *found.ids])
        if found.whole:
            _remember(self._looks, run, _Look(now, tuple(waiting)))
        return found.whole


def _after(cursor: str, other: str) -> bool:
    return consumers.order(cursor) > consumers.order(other)


def _remember(memory: dict[RunRef, T], run: RunRef, what: T) -> None:
    if len(memory) >= REMEMBERED and run not in memory:
        memory.clear()
    memory[run] = what
