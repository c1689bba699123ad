"""A rehearsed EVAL is repeated as the service's is."""

from pathlib import Path
from typing import cast

import pytest

from prorl_mq.schema.task_schema import Schema
from workers.handler import Eval, Handler, NodeCrowded, Ran, Score
from workers.rehearsal.stages import Rehearsal, task_of

pytestmark = pytest.mark.anyio


class Crowded:
    """A family that is cut short by its node so many times."""

    data_sources = ("crowded",)
    schema = Schema(open_ended=True)

    def __init__(self, times: int) -> None:
        self.times = times
        self.repeated: list[bool] = []

    async def eval(self, context: Eval) -> Score:
        self.repeated.append(context.repeated)
        if len(self.repeated) <= self.times:
            raise NodeCrowded("the node had no time")
        return Score(reward=0.5)


async def scored(family: Crowded) -> Score:
    handler = cast("Handler", family)
    return await Rehearsal(None, Path()).score(handler, task_of(handler, {}), Ran(trajectory=None))


async def test_what_a_crowded_node_cuts_short_is_scored_once_more() -> None:
    family = Crowded(1)
    assert ((await scored(family)).reward, family.repeated) == (0.5, [False, True])


async def test_it_is_scored_no_third_time() -> None:
    family = Crowded(2)
    with pytest.raises(NodeCrowded):
        await scored(family)
    assert family.repeated == [False, True]
