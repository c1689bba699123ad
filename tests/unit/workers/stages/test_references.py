"""A node on which a reference solution does not earn what it must scores no job of its family."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Claim, Fail, Finish, Held
from prorl_mq.schema.messages import SampleRecord, Stage
from prorl_mq.schema.timeline import WAITS
from tests.support.queue import spec
from workers.handler import Eval, Handler, NodeCrowded, Reference, Score
from workers.inference.waits import Waits
from workers.stages import references
from workers.stages.eval import EvalStage
from workers.stages.registry import Registry
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
SOURCE = spec().data_source
SAID = f"this node scores no {SOURCE}: a reference solution earned 0, not 1 (None)"


class Scorer:
    """Gives what it is told to, one after the other; it has a right solution and a wrong one."""

    data_sources = (SOURCE,)
    references = tuple(Reference(payload={}, export=reward, reward=reward) for reward in (1.0, 0.0))

    def __init__(self, given: Sequence[float | Exception]) -> None:
        self.given = list(given)

    async def eval(self, context: Eval) -> Score:
        given = self.given.pop(0)
        if isinstance(given, Exception):
            raise given
        return Score(reward=given)


def work() -> Work:
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.EVAL, None, "policy")
    return Work(held=held, claim=Claim("claimed", held.token, 0), spec=spec())


async def played(given: Sequence[float | Exception], jobs: int) -> tuple[list[str], str]:
    """What became of some jobs in turn, and what the worker then says that it waits for."""
    scorer, waits, told = Scorer(given), Waits(), list[str]()
    stage = EvalStage(Registry([cast("Handler", scorer)]), None, cast("Any", None), waits)
    for _ in range(jobs):
        item = (await stage.perform(work())).item
        assert isinstance(item, Fail | Finish)
        told.append(item.detail if isinstance(item, Fail) else f"{decode(item.record, SampleRecord).reward}")
    assert scorer.given == []
    return told, waits.text


async def test_the_references_are_scored_once_and_then_jobs_are() -> None:
    assert await played([1.0, 0.0, 0.5, 0.7], jobs=2) == (["0.5", "0.7"], "")


@pytest.mark.parametrize("given", [[0.0], [1.0, 1.0]], ids=["a right one fails", "a wrong one passes"])
async def test_a_node_that_scores_them_wrongly_scores_no_job_and_says_so(given: list[float]) -> None:
    """Its jobs wait, or go to other nodes, and none of their attempts is used up."""
    told, waits = await played(given, jobs=2)
    assert told == [f"{WAITS}{waits}"] * 2, "and it is not tried again at once"
    assert waits.startswith(f"this node scores no {SOURCE}: a reference solution earned")


async def test_a_node_that_scores_them_rightly_again_scores_jobs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "AGAIN_S", -1.0)
    assert await played([0.0, 1.0, 0.0, 0.5], jobs=2) == ([f"{WAITS}{SAID}", "0.5"], "")


async def test_they_are_scored_again_after_a_node_had_no_time() -> None:
    crowded = NodeCrowded("no time")
    told, _ = await played([1.0, 0.0, crowded, 1.0, 0.0, 0.5], jobs=2)
    assert told == [f"{Cause.NODE}: NodeCrowded: no time", "0.5"]
