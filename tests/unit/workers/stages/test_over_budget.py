"""RUN's budget counts against the policy from when it was asked to speak: what went by before was not its time."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import Advance, Finish
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.store.payloads.writing import StoredPayload
from tests.unit.workers.stages.test_returned import ANY, SOURCE, work
from workers.agent import loading
from workers.handler import Handler, Ran
from workers.stages import run
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Carried

pytestmark = pytest.mark.anyio
RUN_MS = 400


class Policy:
    """Answers, or has its time used up while it speaks."""

    def __init__(self, *, in_time: bool) -> None:
        self._in_time = in_time

    async def generate(self, _prompt_ids: Any, **_sampling: Any) -> Any:
        if not self._in_time:
            await asyncio.sleep(RUN_MS / 1000)
            raise TimeoutError("the budget of RUN is used up")


class Late:
    """Asks the policy or does not, and outlasts RUN's budget; with `own_clock` it says so itself."""

    data_sources = (SOURCE,)

    def __init__(self, *, asks: bool, own_clock: bool) -> None:
        self._asks, self._own_clock = asks, own_clock

    async def run(self, context: Any) -> Ran:
        try:
            if self._asks:
                await context.policy.generate([1])
        except TimeoutError:
            if not self._own_clock:
                raise
        if not self._own_clock:
            await asyncio.Event().wait()
        return Ran(trajectory=Trajectory(segments=[], turns=[], stop_reason="time", truncated_by="time"))


async def ended(*, asks: bool, own_clock: bool, in_time: bool) -> Any:
    def policy(_work: Any, _clock: Any) -> Any:
        return Policy(in_time=in_time)

    async def kept(*_: Any, **__: Any) -> StoredPayload:
        return StoredPayload("trajectory")

    registry = Registry([cast("Handler", Late(asks=asks, own_clock=own_clock))])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "GRACE_S", 0.1)
        patched.setattr("prorl_mq.store.payloads.writing.put", kept)
        stage = RunStage(registry, None, ANY, policy, "n0")
        return (await stage.perform(work(Stage.RUN, run_ms=RUN_MS))).item


@pytest.mark.parametrize("own_clock", [True, False])
async def test_time_that_is_over_before_the_policy_was_asked_earns_no_reward(own_clock: bool) -> None:
    item = await ended(asks=False, own_clock=own_clock, in_time=True)
    assert isinstance(item, Finish)
    record = decode(item.record, SampleRecord)
    assert (record.outcome, record.reward) == (Outcome.STAGE_TIMEOUT, None)
    assert record.error is not None
    assert record.error.message == f"run took longer than {RUN_MS} ms"


@pytest.mark.parametrize(("own_clock", "in_time"), [(False, True), (False, False), (True, False)])
async def test_time_that_is_over_while_the_policy_speaks_or_later_is_its_own(own_clock: bool, in_time: bool) -> None:
    """A first answer that is too long for the budget is `truncated`: were it repeated, long answers would vanish."""
    item = await ended(asks=True, own_clock=own_clock, in_time=in_time)
    assert isinstance(item, Advance)
    assert msgspec.msgpack.decode(item.carry, type=Carried).truncated_by == "time"


async def test_loading_the_tokenizer_costs_the_policy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds in a new worker: with no backend to be had the job once ended as if RUN had been too slow."""
    asked: list[float] = []
    clock = asyncio.get_running_loop().time

    async def load() -> None:
        if not asked:
            await asyncio.sleep(2 * RUN_MS / 1000)
        asked.append(clock())

    class Agent(Late):
        async def run(self, context: Any) -> Ran:
            await loading.policy_renderer()
            await context.policy.generate([1])
            return Ran(trajectory=None, export=b"in time")

    monkeypatch.setenv("PRORL_TOKENIZER", "configured")
    monkeypatch.setattr(loading, "policy_renderer", load)
    registry = Registry([cast("Handler", Agent(asks=True, own_clock=False))])
    stage = RunStage(registry, None, ANY, lambda _work, _clock: cast("Any", Policy(in_time=True)), "n0")
    item = (await stage.perform(work(Stage.RUN, run_ms=RUN_MS))).item
    assert isinstance(item, Advance)
    assert (msgspec.msgpack.decode(item.carry, type=Carried).handler, len(asked)) == (b"in time", 2)
