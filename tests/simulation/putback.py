"""Bugs of the first release, put back for a test: each context restores the functions that had it, word for word."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from prorl_mq.duties.intake import AT_ONCE, IDLE_BLOCK_MS, NOBODY_WAIT_S, Intake
from prorl_mq.duties.settle import Settling, settlement
from prorl_mq.rules.records import Group
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef
from prorl_mq.service import judge
from workers.process.slots import Slot, Slots
from workers.process.worker import Worker
from workers.stages import scope
from workers.stages.stage import Stage


@contextlib.contextmanager
def slot_leaked_by_an_early_cancel() -> Iterator[None]:
    """A cancel that comes before a job's task has taken its first step: nobody confirms."""

    def stop(self: Slot) -> None:
        if self.task is not None and not self.closing:
            self.task.cancel()

    def told(self: Slots, ref: JobRef, token: str, ending: str) -> None:
        slot = self.held.get(ref)
        if slot is not None and slot.work.held.token == token and slot.ending is None and not slot.lost:
            slot.ending, slot.told_at = ending, asyncio.get_running_loop().time()
            slot.stop()

    async def perform(self: Worker, slot: Slot, stage: Stage) -> None:
        try:
            with scope.entered(slot.work, self.settings.stage, self.store.name, self.tracing):
                move = await stage.perform(slot.work)
        except asyncio.CancelledError:
            slot.closing = True
            await self._stopped(slot)
            return
        slot.closing = True
        if slot.lost:
            await self._undo(move)
            self.slots.give(slot)
        elif slot.ending is not None:
            await self._undo(move)
            await self._confirm(slot)
        else:
            self.commits.put(slot, move)

    patch = mock.patch.object
    with patch(Slot, "stop", stop), patch(Slots, "told", told), patch(Worker, "_perform", perform):
        yield


@contextlib.contextmanager
def verdict_from_a_stale_read() -> Iterator[None]:
    """The group is read, its rest is cancelled, and the verdict is made of what was read before the cancel."""

    async def settle(self: Settling, entry: str, ref: GroupRef, group: Group | None) -> None:
        if group is not None and group.number("open"):
            await self._look_early(group)
        if group is not None and group.reserved and not group.number("open"):
            await judge.settle(self.store, entry, group, linger_ms=self.linger_ms)
        else:
            await self.store.settle(settlement(entry, ref, group), linger_ms=self.linger_ms)

    with mock.patch.object(Settling, "_settle", settle):
        yield


@contextlib.contextmanager
def intake_stopped_by_a_foreign_key() -> Iterator[None]:
    """One member of the shared set that is no name, or one key of the wrong kind, ends every turn of the intake."""

    async def turn(self: Intake) -> float:
        store, keys = self.store, self.store.keys
        runs = [RunRef(run.decode()) for run in await store.read("SMEMBERS", keys.intakes)]
        runs = [run for run in runs if run.count(":") == 1]
        if not runs:
            return NOBODY_WAIT_S
        streams: list[Any] = [keys.intake(run) for run in runs]
        by_stream = dict(zip(streams, runs, strict=True))
        zeros = ("0",) * len(streams)
        reply = await store.wait_read("XREAD", "COUNT", AT_ONCE, "BLOCK", IDLE_BLOCK_MS, "STREAMS", *streams, *zeros)
        for stream, entries in reply or ():
            name = stream.decode()
            for entry, fields in entries:
                await self._take(by_stream[name], entry.decode(), fields or [])
        return 0.0

    with mock.patch.object(Intake, "turn", turn):
        yield
