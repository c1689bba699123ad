"""Jobs from their start to the end of their slots.

Invariant: what follows a job's performing task gives its slot back, whatever becomes of that task: it returns, raises,
or is cancelled before its first step. Usually that is a commit. A job that must be undone, confirmed or given back has
a closing task, which nobody cancels while the worker works.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

from prorl_mq.clock import monotonic
from prorl_mq.process import logs
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import public
from prorl_mq.schema.items import Release
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import jobs
from prorl_mq.store import work as stored
from prorl_mq.store.server.faults import is_everybodys
from prorl_mq.store.store import Store
from workers import metrics
from workers.process.commits import DONE, Answer, Commits
from workers.process.leasing import Leasing
from workers.process.slots import Slot, Slots
from workers.stages import failures
from workers.stages.stage import StageRunner, carried
from workers.stages.work import Carried, Move, Undo, Work

log = logging.getLogger("workers")

UNTRACED: Final = nullcontext()
STOP_S: Final = 15.0  # how long jobs that were told to stop are waited for when the worker ends


class Jobs:
    """The jobs in the slots. `took` is given the seconds of each job that its stage has decided on."""

    def __init__(
        self,
        name: Stage,
        store: Store,
        slots: Slots,
        commits: Commits,
        leasing: Leasing,
        *,
        took: Callable[[float], None],
        grace_s: float,
        tracing: Tracing | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._slots = slots
        self._commits = commits
        self._leasing = leasing
        self._took = took
        self._grace_s = grace_s
        self._leaving = False
        self._tracing = tracing
        self._kept: set[Slot] = set()  # those that something will give back
        self._seconds = metrics.stage_seconds.labels(name)

    def start(self, work: Work, stage: StageRunner, *, leased: bool = False) -> bool:
        """Performs a job; false if it has a slot already: none is performed twice. `leased`: it was claimed before."""
        slot = self._slots.take(work)
        if slot is None:
            return False
        if slot.ending is not None:
            self._close(slot, self._end(slot, None))
            return True
        if leased:
            slot.got_lease()
        else:
            self._leasing.watch(slot)
        self._kept.add(slot)
        slot.work.left.asked, slot.work.left.rest = self._leaving, slot.stop
        slot.performing = asyncio.create_task(self._perform(slot.work, stage))
        slot.performing.add_done_callback(partial(self._performed, slot))
        return True

    def hand_back(self, work: Work) -> bool:
        """Gives a job back undone; false if it has a slot already: that one decides."""
        slot = self._slots.take(work)
        if slot is not None:
            self._close(slot, self._handed_back(slot))
        return slot is not None

    def abandoned(self) -> list[Slot]:
        """Slots that nobody will give back: there should be none."""
        return [slot for slot in self._slots.held.values() if slot not in self._kept]

    def strays(self) -> list[Slot]:
        """Jobs that run without a slot, so that no lease of theirs is renewed: there should be none."""
        return [slot for slot in self._kept if self._slots.held.get(slot.title) is not slot]

    def adopt(self, slot: Slot) -> None:
        """Ends an abandoned slot: what it ran is stopped, its job confirmed or given back."""
        slot.stop()
        self._close(slot, self._adopted(slot))

    def pause(self, slot: Slot) -> None:
        """Has a job end where its next turn would begin, or with the grace time. One in EVAL ends soon anyway."""
        if slot.cut is None and self._name is not Stage.EVAL:
            slot.work.left.asked = True
            slot.cut = asyncio.get_running_loop().call_later(self._grace_s, slot.stop)

    def go_on(self, slot: Slot) -> None:
        """Takes that back, as far as it has not happened. Idempotent."""
        if slot.cut is not None and not slot.stopped:
            slot.cut.cancel()
            slot.cut, slot.work.left.asked = None, self._leaving

    def hand_on(self) -> None:
        """From now on jobs end where their next turn would begin, for other workers to continue with."""
        self._leaving = True
        for slot in self._slots.held.values():
            slot.work.left.asked = True

    async def drain(self) -> None:
        """Lets jobs finish within the grace time, then stops them; returns `STOP_S` after that at the latest."""
        if not await self._emptied(self._grace_s):
            for slot in list(self._slots.held.values()):
                slot.stop()
            await self._emptied(STOP_S)

    async def leave(self) -> None:
        """Stops what still runs, and leaves to its lease what does not stop. Returns within `STOP_S`."""
        fresh = [slot.stop() for slot in self._slots.held.values()]
        if any(fresh):
            await self._emptied(STOP_S)
        for slot in list(self._slots.held.values()):
            log.error("job=%s has not stopped %d s after it was told to: its lease ends it", slot.work.held.ref, STOP_S)
            if slot.closing is not None:
                slot.closing.cancel()
            self._give(slot)

    async def _emptied(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._slots.empty()
        except TimeoutError:
            return False
        return True

    def _give(self, slot: Slot) -> None:
        if slot.cut is not None:
            slot.cut.cancel()
        self._kept.discard(slot)
        self._slots.give(slot)

    def _close(self, slot: Slot, end: Coroutine[Any, Any, None]) -> None:
        """Gives the slot back when its end is said, or cannot be."""
        self._kept.add(slot)
        slot.closing = asyncio.create_task(end, name=f"end of job {slot.work.held.ref}")
        slot.closing.add_done_callback(partial(self._closed, slot))

    async def _handed_back(self, slot: Slot) -> None:
        slot.work.left.continues = await jobs.has_log(self._store, slot.work.held.ref)
        await self._end(slot, None)

    async def _adopted(self, slot: Slot) -> None:
        if slot.performing is not None:
            await asyncio.wait({slot.performing})
        await self._end(slot, None)

    def _closed(self, slot: Slot, closing: "asyncio.Task[None]") -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            _unsaid(slot, error)
        self._give(slot)

    async def _perform(self, work: Work, stage: StageRunner) -> Move:
        began = monotonic()
        try:
            with _scope(work, self._name, self._store.name, self._tracing):
                move = await stage.perform(work)
            took = monotonic() - began
            self._seconds.observe(took)
            if not work.left.continues:  # another worker would have continued it
                self._took(took)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a handler that calls sys.exit ends its job, not the worker
            return _ended_by(work, error)
        return move

    def _performed(self, slot: Slot, task: "asyncio.Task[Move]") -> None:
        """The decision of the stage goes with the next commit; there is none where its task was cancelled."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _unsaid(slot, error)
            self._give(slot)
            return
        move = None if task.cancelled() else task.result()
        if move is None or slot.lost or slot.ending is not None:
            self._close(slot, self._end(slot, move))
        else:
            self._commits.send(move, partial(self._answered, slot, move))

    def _answered(self, slot: Slot, move: Move, answer: Answer) -> None:
        if answer is None or (answer in DONE and slot.work.left.destroy is None):
            self._give(slot)
        else:
            self._close(slot, self._said(slot, move, answer))

    async def _end(self, slot: Slot, move: Move | None) -> None:
        """Undoes what must not be committed; a job without a decision is given back."""
        if slot.lost:
            await _undo(slot, move)
        elif slot.ending is not None:
            await _undo(slot, move)
            await self._confirm(slot)
        else:
            given_back = failures.given_back if slot.cut is None else failures.paused
            move = move or given_back(slot.work)
            await self._said(slot, move, await self._commits.commit(move))

    async def _said(self, slot: Slot, move: Move, answer: Answer) -> None:
        """Acts on the answer to a commit. A decision that cannot be sent, or that fails a script, is undone and fails
        the attempt: left to its lease, the job would come back undone, and fail so again.
        """
        if isinstance(answer, Exception):
            if is_everybodys(answer):
                raise answer
            await _undo(slot, move)
            move = failures.unsaid(slot.work, answer)
            answer = await self._commits.commit(move)
        if isinstance(answer, Exception):
            raise answer
        if answer is None or answer in DONE:
            if answer in DONE and not isinstance(move.item, Release):
                await _destroy(slot)
            return
        log.warning("commit refused job=%s answer=%s", slot.work.held.ref, answer)
        metrics.refused.labels(answer).inc()
        await _undo(slot, move)
        if answer not in {"stale", "gone"}:
            slot.ending = slot.ending or await stored.ending(self._store, slot.work.held.ref)
            slot.told_at = slot.told_at or monotonic()
            await self._confirm(slot)

    async def _confirm(self, slot: Slot) -> None:
        await _destroy(slot)
        held, ending = slot.work.held, Outcome(slot.ending or Outcome.CANCELLED)
        stopped_ms = round((monotonic() - slot.told_at) * 1000, 3)
        record = slot.work.record(ending, _carried(slot.work), stopped_ms=stopped_ms)
        metrics.cancel_stop_seconds.observe(stopped_ms / 1000)
        answer = await self._store.confirm(held, encode(record), f"stopped_ms={stopped_ms}")
        log.info("stopped job=%s ending=%s stopped_ms=%s answer=%s", held.ref, ending, stopped_ms, answer)


def _ended_by(work: Work, error: BaseException) -> Move:
    """The end of an attempt by what its stage raised; where that cannot be said, by this."""
    try:
        return failures.failed(work, _carried(work), error)
    except Exception as fault:
        return failures.unsaid(work, fault)


def _unsaid(slot: Slot, error: BaseException) -> None:
    log.error("job=%s: its end could not be said, its lease ends it", slot.work.held.ref, exc_info=error)


async def _undo(slot: Slot, move: Move | None) -> None:
    """Destroys what an attempt left. What cannot be destroyed now is swept later: it must not hold up the job's end."""
    await _done(slot, move.undo if move is not None else None)


async def _destroy(slot: Slot) -> None:
    """Destroys what was left for a later attempt, in the same way: there will be none."""
    await _done(slot, slot.work.left.destroy)


async def _done(slot: Slot, undo: Undo | None) -> None:
    if undo is None:
        return
    try:
        await undo()
    except Exception:
        log.exception("job=%s: what its attempt left is not destroyed yet", slot.work.held.ref)


def _carried(work: Work) -> Carried:
    """The data that the stage before handed over; empty if it cannot be read."""
    try:
        return carried(work)
    except Exception:
        return Carried()


def _scope(work: Work, stage: Stage, worker: str, tracing: Tracing | None) -> AbstractContextManager[None]:
    """For the rest of this task log lines name the job; what is done inside is a span in its trace."""
    logs.about(work.held.ref, work.attempt, stage.value)
    if tracing is None or work.spec.trace is None:
        return UNTRACED
    told = {"prorl.attempt": work.attempt, "prorl.worker": worker}
    if stage is Stage.RUN:
        told["gen_ai.operation.name"] = "invoke_agent"
    return tracing.stage(stage.value, work.spec.trace, public(work.held.ref), told)
