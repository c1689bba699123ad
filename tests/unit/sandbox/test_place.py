"""The keeper's place on a node, which sweeps of workers hold together while no keeper runs."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from sandbox.keeper import place

pytestmark = pytest.mark.anyio


async def sweeping(directory: Path) -> None:
    """As many workers do on a busy machine: one sweep begins before the other ends."""
    last = contextlib.ExitStack()
    try:
        while True:
            following = contextlib.ExitStack()
            following.enter_context(place.unkept(directory))
            last.close()
            last = following
            await asyncio.sleep(0.01)
    finally:
        last.close()


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_keeper_comes_in_between_sweeps_that_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The control: sweeps that do not ask whether a keeper waits keep it out for as long as it has patience."""
    monkeypatch.setattr(place, "WAIT_S", 30.0 if guarded else 0.5)
    if not guarded:
        monkeypatch.setattr(place, "_awaited", lambda _: False)
    sweeps = asyncio.create_task(sweeping(tmp_path))
    await asyncio.sleep(0.05)
    try:
        with contextlib.nullcontext() if guarded else pytest.raises(place.AlreadyKept):
            async with place.occupied(tmp_path):
                with place.unkept(tmp_path) as alone:
                    assert not alone
    finally:
        sweeps.cancel()
        await asyncio.gather(sweeps, return_exceptions=True)


async def test_a_second_keeper_is_refused_and_sweeps_begin_when_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "WAIT_S", 0.1)
    async with place.occupied(tmp_path):
        with pytest.raises(place.AlreadyKept, match="has a keeper already"):
            async with place.occupied(tmp_path):
                pass
    with place.unkept(tmp_path) as alone:
        assert alone
