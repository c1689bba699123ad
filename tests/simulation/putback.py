"""Bugs of the first release, put back for a test: each context makes the product do again what it did then."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

from prorl_mq.client.repeats import Repeats
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.ids import RunRef
from prorl_mq.store import results, scripts
from prorl_mq.store.server import connection
from prorl_mq.store.store import Store
from tests.simulation import client as simulated
from tests.simulation.mutants import applied
from workers.process.jobs import Jobs
from workers.process.slots import Slot
from workers.stages.stage import StageRunner
from workers.stages.work import Move, Work

CHANGES = "  if (f[4] or '') ~= A.changes then return 'moved' end\n"


@contextlib.contextmanager
def slot_leaked_by_an_early_cancel() -> Iterator[None]:
    """A job's task ends the job itself: cancelled before its first step, it gives no slot back."""

    async def perform_and_close(self: Jobs, slot: Slot, stage: StageRunner) -> None:
        try:
            move: Move | None = await self._perform(slot, stage)
        except asyncio.CancelledError:
            move = None
        slot.performing = None
        await self._end(slot, move)
        self._slots.give(slot)

    def start(self: Jobs, work: Work, stage: StageRunner) -> bool:
        slot = self._slots.take(work)
        if slot is not None:
            task = asyncio.create_task(perform_and_close(self, slot, stage))
            slot.performing = slot.closing = task  # type: ignore[assignment]
        return slot is not None

    with mock.patch.object(Jobs, "start", start):
        yield


@contextlib.contextmanager
def verdict_from_a_stale_read() -> Iterator[None]:
    """A verdict is applied though its group has changed since it was read."""
    text = scripts.script("settle").text
    assert CHANGES in text
    with applied({"settle": text.replace(CHANGES, "")}):
        yield


@contextlib.contextmanager
def intake_stopped_by_a_name() -> Iterator[None]:
    """One member of the shared set that is no text ends every turn of the intake."""

    async def intakes(store: Store) -> list[RunRef]:
        names = [name.decode() for name in await store.read("SMEMBERS", store.keys.intakes)]
        return [RunRef(name) for name in names if name.count(":") == 1]

    with mock.patch.object(results, "intakes", intakes):
        yield


@contextlib.contextmanager
def intake_stopped_by_a_key() -> Iterator[None]:
    """One run's key of the wrong kind ends every turn of a duty."""

    async def leave_out(self: Apart, run: str, why: Exception) -> None:
        raise why

    with mock.patch.object(Apart, "leave_out", leave_out):
        yield


@contextlib.contextmanager
def reads_that_wait_without_end() -> Iterator[None]:
    """A blocking read has no deadline: a peer that is dead behind a tunnel is waited for without end."""
    original = simulated.deadline

    def deadline(*command: Any) -> float | None:
        return original(*command) and math.inf

    with mock.patch.object(simulated, "deadline", deadline):
        yield


@contextlib.contextmanager
def workers_ended_by_a_role() -> Iterator[None]:
    """Errors of a change of role are not taken for what passes."""
    left = connection.PASSING - {"UNBLOCKED", "MASTERDOWN", "NOREPLICAS"}
    with mock.patch.object(connection, "PASSING", left):
        yield


@contextlib.contextmanager
def clock_believed_without_limit() -> Iterator[None]:
    """Redis's clock is taken as it is."""

    async def jumped(self: ServiceClock) -> bool:
        await self.store.open_epoch()
        return False

    with mock.patch.object(ServiceClock, "jumped", jumped):
        yield


@contextlib.contextmanager
def time_that_goes_back() -> Iterator[None]:
    """Until a step back of the clock is noticed, scripts work with the time that it shows."""
    floor = "math.max(clock_us, 1000 * tonumber(epoch[4] or 0))"
    texts = {name: scripts.script(name).text for name in scripts.names()}
    with applied({name: text.replace(floor, "clock_us") for name, text in texts.items() if floor in text}):
        yield


@contextlib.contextmanager
def doubles_that_stay() -> Iterator[None]:
    """A result that is published again after a lost second is passed over, and acknowledged by nobody."""
    with (
        mock.patch.object(Repeats, "owed", return_value=[]),
        mock.patch.object(Repeats, "with_repeats", lambda _self, _run, cursors: list(cursors)),
    ):
        yield
