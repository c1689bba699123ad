"""A sandbox that fails under the agent: once nobody's fault, twice the agent's, and never a null."""

from typing import Any

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import Advance, Fail, Finish
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage
from tests.pool.test_stages import Sums, claimed
from tests.support.queue import Queue
from workers.handler import Ran, SandboxLost
from workers.inference.run_clock import RunClock
from workers.stages.eval import EvalStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Work

pytestmark = pytest.mark.anyio


class Breaks(Sums):
    """Its agent ends its sandbox in so many attempts; a scorer that is asked gives 1."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def run(self, context: Any) -> Ran:
        ran = await super().run(context)
        self.times -= 1
        if self.times >= 0:
            raise SandboxLost("SandboxGone: its server does not answer", ran.trajectory)
        return ran


def no_policy(work: Work, clock: RunClock) -> Any:
    raise NotImplementedError


async def played(queue: Queue, times: int) -> list[str | SampleRecord]:
    """The details of attempts that were repeated, then the record."""
    registry, said = Registry([Breaks(times)]), list[str | SampleRecord]()
    await queue.admitted()
    while True:
        begun = await InitStage(registry, None, queue.store, "n0").perform(await claimed(queue, Stage.INIT))
        assert isinstance(begun.item, Advance)
        await queue.store.advance([begun.item])
        ran = (
            await RunStage(registry, None, queue.store, no_policy, "n0").perform(await claimed(queue, Stage.RUN))
        ).item
        if isinstance(ran, Advance):
            break
        assert isinstance(ran, Fail)
        said.append(ran.detail)
        await queue.store.fail([ran])
        await queue.store.promote([(ran.held.ref, queue.keys.stage(Stage.INIT))])
        await queue.command("ZADD", queue.keys.delayed, 0, ran.held.ref)
        await queue.store.promote([(ran.held.ref, queue.keys.stage(Stage.INIT))])
    await queue.store.advance([ran])
    ended = (await EvalStage(registry, None, queue.store).perform(await claimed(queue, Stage.EVAL))).item
    assert isinstance(ended, Finish)
    return [*said, decode(ended.record, SampleRecord)]


async def test_the_first_time_the_attempt_is_repeated_and_counts(queue: Queue) -> None:
    doubt, record = await played(queue, times=1)
    assert doubt == "in doubt: SandboxLost: SandboxGone: its server does not answer"
    assert isinstance(record, SampleRecord)
    assert (record.outcome, record.reward, record.note) == (Outcome.COMPLETED, 1.0, None)


async def test_the_second_time_it_is_the_agents_fault_and_its_tokens_are_kept(queue: Queue) -> None:
    _, record = await played(queue, times=2)
    assert isinstance(record, SampleRecord)
    assert (record.outcome, record.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert "failed in two attempts" in (record.note or "")
    assert record.trajectory is not None
    assert record.response_tokens == 1
