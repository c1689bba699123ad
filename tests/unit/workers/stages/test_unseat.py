"""An attempt that is over gives its room up, however it ended."""

import asyncio
from typing import Any, cast

import pytest

from prorl_mq.schema.messages import Stage
from tests.unit.workers.stages.test_returned import ANY, SOURCE, work
from workers.handler import Handler, Ran
from workers.stages.registry import Registry
from workers.stages.run import RunStage

pytestmark = pytest.mark.anyio


class Ends:
    """A handler that ends in one way."""

    data_sources = (SOURCE,)

    def __init__(self, how: str) -> None:
        self._how = how

    async def run(self, _context: Any) -> Ran:
        if self._how == "fails":
            raise ValueError("it broke")
        if self._how == "cancelled":
            await asyncio.Event().wait()
        return Ran(trajectory=None)


@pytest.mark.parametrize("how", ["done", "fails", "cancelled"])
async def test_a_seat_is_free_when_its_attempt_is_over(how: str) -> None:
    freed: list[str] = []
    made = work(Stage.RUN)
    made.left.unseat = lambda: freed.append("seat")
    stage = RunStage(Registry([cast("Handler", Ends(how))]), None, ANY, ANY, "n0")
    task = asyncio.create_task(stage.perform(made))
    await asyncio.wait([task], timeout=0.05)
    assert bool(freed) is (how != "cancelled")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert freed == ["seat"]
