"""What handlers return and raise: a record that a trainer can read, or a failed attempt that says what is wrong."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Claim, Fail, Finish, Held
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Stage
from tests.support.queue import spec
from workers.handler import Handler, Score
from workers.stages.eval import EvalStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
SOURCE = spec().data_source
GAVE = f"worker: ValueError: the handler of {SOURCE} gave"
NO_RECORD = f"{GAVE} a score that no record takes:"
NO_NUMBER = "which is no finite number"
HANGS = object()
ANY: Any = None


class Odd:
    """Every stage returns or raises the same."""

    data_sources = (SOURCE,)

    def __init__(self, given: Any) -> None:
        self.given = given

    async def init(self, _context: Any) -> Any:
        if self.given is HANGS:
            await asyncio.Event().wait()
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    run = eval = init


def work(stage: Stage, **limits: int) -> Work:
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), stage, None, "policy")
    return Work(held=held, claim=Claim("claimed", held.token, 0), spec=spec(limits=Limits(**limits)))


async def ended(stage: Stage, given: Any, **limits: int) -> Any:
    """The stage's decision."""
    registry = Registry([cast("Handler", Odd(given))])
    made: dict[Stage, Any] = {
        Stage.INIT: InitStage(registry, None, ANY, "n0"),
        Stage.RUN: RunStage(registry, None, ANY, ANY, "n0"),
        Stage.EVAL: EvalStage(registry, None, ANY),
    }
    return (await made[stage].perform(work(stage, **limits))).item


@pytest.mark.parametrize("number", [True, 7, Fraction(1, 2), Decimal("0.5"), 0.25], ids=repr)
async def test_every_number_is_a_reward(number: Any) -> None:
    item = await ended(Stage.EVAL, Score(reward=number, parts={"same": number}))
    assert isinstance(item, Finish)
    record = decode(item.record, SampleRecord)
    assert (record.reward, record.reward_parts) == (float(number), {"same": float(number)})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Score(reward=math.nan), f"{GAVE} the reward nan, {NO_NUMBER}"),
        (Score(reward=-math.inf), f"{GAVE} the reward -inf, {NO_NUMBER}"),
        (Score(reward=10**400), f"{GAVE} the reward 1000"),
        (Score(reward=cast("Any", "1.0")), f"{GAVE} the reward '1.0', {NO_NUMBER}"),
        (Score(reward=cast("Any", None)), f"{GAVE} the reward None, {NO_NUMBER}"),
        (Score(reward=1.0, parts={"a": math.nan}), f"{GAVE} the part 'a' nan, {NO_NUMBER}"),
        (Score(reward=1.0, parts=cast("Any", {"a": "1"})), f"{GAVE} the part 'a' '1', {NO_NUMBER}"),
        (Score(reward=1.0, parts=cast("Any", {1: 1.0})), f"{NO_RECORD} Expected `str`, got `int`"),
        (Score(reward=1.0, parts=cast("Any", ["a"])), f"{NO_RECORD} its parts are ['a']"),
        (Score(reward=1.0, note=cast("Any", 5)), f"{NO_RECORD} Expected `str | null`, got `int`"),
        (Score(reward=1.0, evidence=cast("Any", {3: "x"})), f"{NO_RECORD} Expected `str`, got `int`"),
        (Score(reward=1.0, evidence=cast("Any", "x")), f"{NO_RECORD} Expected `object`, got `str`"),
        (Score(reward=1.0, evidence={"a": object()}), f"{NO_RECORD} Encoding objects of type object"),
    ],
    ids=lambda each: "" if isinstance(each, str) else repr(each)[:40],
)
async def test_a_score_that_no_trainer_could_read_is_a_failed_attempt(given: Score, told: str) -> None:
    """In a record it would hold up its group, and every group of its run, without end."""
    item = await ended(Stage.EVAL, given)
    assert isinstance(item, Fail)
    assert item.detail.startswith(told)


async def test_a_record_stays_small_whatever_a_note_and_evidence_quote() -> None:
    item = await ended(Stage.EVAL, Score(reward=1.0, note="n" * 20_000, evidence={"prompt": "p" * (1 << 20)}))
    record = decode(item.record, SampleRecord)
    assert record.note == "n" * 10_000
    assert record.evidence == {"left_out": "1024 KiB; 256 are kept"}


async def test_evidence_of_a_few_kilobytes_is_kept() -> None:
    """The control."""
    item = await ended(Stage.EVAL, Score(reward=1.0, note="right", evidence={"prompt": "p" * 5_000}))
    record = decode(item.record, SampleRecord)
    assert (record.note, record.evidence) == ("right", {"prompt": "p" * 5_000})


@pytest.mark.parametrize(("stage", "kind"), list(zip(Stage, ("Prepared", "Ran", "Score"), strict=True)))
@pytest.mark.parametrize("given", [None, 7], ids=repr)
async def test_a_stage_says_what_its_handler_must_return(stage: Stage, kind: str, given: Any) -> None:
    item = await ended(stage, given)
    told = f"worker: TypeError: {stage} of {SOURCE} returned {given}; a handler returns {kind} there"
    assert (type(item), item.detail) == (Fail, told)


@pytest.mark.parametrize("stage", Stage)
async def test_a_time_out_of_the_handlers_own_is_no_end_of_the_budget(stage: Stage) -> None:
    item = await ended(stage, TimeoutError("the data base did not answer"))
    assert (type(item), item.detail) == (Fail, "timeout: TimeoutError: the data base did not answer")


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.EVAL])
async def test_the_end_of_the_budget_ends_the_job(stage: Stage) -> None:
    """The control."""
    item = await ended(stage, HANGS, **{f"{stage}_ms": 1})
    assert isinstance(item, Finish)
    error = decode(item.record, SampleRecord).error
    assert error is not None
    assert (item.outcome, error.message) == (Outcome.STAGE_TIMEOUT, f"{stage} took longer than 1 ms")
