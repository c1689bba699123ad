"""A duty whose turn fails says what has failed."""

import asyncio
import contextlib
import errno
from typing import cast

import pytest

from prorl_mq.duties.duty import Duty
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store

pytestmark = pytest.mark.anyio


class HeldLease:
    """A store in which this process holds every duty."""

    async def hold(self, *_: object, **__: object) -> str:
        return "held"


@pytest.mark.parametrize("hidden", [False, True])
async def test_a_full_disk_is_not_said_to_be_a_fault_of_redis(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hidden: bool
) -> None:
    """The log has where it was raised. The control blames Redis for every `OSError`, without a traceback."""

    async def turn() -> float:
        raise OSError(errno.ENOSPC, "no room for it")

    if hidden:
        monkeypatch.setattr("prorl_mq.duties.duty.FAULTS", (*FAULTS, OSError))
    running = asyncio.create_task(Duty(cast("Store", HeldLease()), "sweep", turn).run())
    while not caplog.records:
        await asyncio.sleep(0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    [said] = caplog.records
    assert ("Redis failed its turn" in said.getMessage()) is hidden
    assert bool(said.exc_info) is not hidden
