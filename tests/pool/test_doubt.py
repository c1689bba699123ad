"""A sandbox that fails under the agent: once no fault of the agent, twice its own, and never a null."""

from typing import Any

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import Advance, Fail, Finish
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage
from sandbox.errors import SandboxGone, SandboxOverrun
from tests.pool.test_stages import Sums, claimed
from tests.support.queue import Queue
from workers.handler import Ran, SandboxLost
from workers.inference.protocol import Completion
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


async def played(queue: Queue, family: Sums) -> list[str | SampleRecord]:
    """The details of attempts that were repeated, then the record."""
    registry, said = Registry([family]), list[str | SampleRecord]()
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
    doubt, record = await played(queue, Breaks(times=1))
    assert doubt == "in doubt: SandboxLost: SandboxGone: its server does not answer"
    assert isinstance(record, SampleRecord)
    assert (record.outcome, record.reward, record.note) == (Outcome.COMPLETED, 1.0, None)


async def test_the_second_time_it_is_the_agents_fault_and_its_tokens_are_kept(queue: Queue) -> None:
    _, record = await played(queue, Breaks(times=2))
    assert isinstance(record, SampleRecord)
    assert (record.outcome, record.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert "two attempts failed" in (record.note or "")
    assert record.trajectory is not None
    assert record.response_tokens == 1


class Overruns(Sums):
    """Its agent takes more memory than the sandbox's control group has, in each attempt."""

    async def run(self, context: Any) -> Ran:
        ran = await super().run(context)
        raise SandboxLost("SandboxOverrun: it took all", ran.trajectory) from SandboxOverrun("it took all")


async def test_an_agent_that_took_all_its_memory_is_at_fault_the_first_time(queue: Queue) -> None:
    """It could otherwise have another attempt for a bad one. The control is `Breaks`, whose cause nobody knows."""
    [record] = await played(queue, Overruns())
    assert isinstance(record, SampleRecord)
    assert (record.outcome, record.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert "it took all" in (record.note or "")
    assert record.response_tokens == 1


class Hoards(Sums):
    """Its agent leaves more than may be exported."""

    async def run(self, context: Any) -> Ran:
        ran = await super().run(context)
        return Ran(trajectory=ran.trajectory, export=b"x" * (17 << 20))


async def test_an_export_that_an_agent_may_have_made_too_large_is_its_fault_the_second_time(queue: Queue) -> None:
    """It could otherwise have a bad sample forgotten."""
    doubt, record = await played(queue, Hoards())
    assert doubt == "in doubt: SandboxLost: the handler exported 17 MiB; 16 MiB are allowed"
    assert isinstance(record, SampleRecord)
    assert (record.outcome, record.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert record.trajectory is not None


class Leaves(Sums):
    """Its sandbox is gone when its work is to be read, whether or not the policy was heard before that."""

    def __init__(self, *, asks: bool) -> None:
        super().__init__()
        self.asks = asks

    async def run(self, context: Any) -> Ran:
        policy = context.policy
        if self.asks:
            await policy.generate([1], max_tokens=1, temperature=1.0)
        raise SandboxGone("its process is dead")


class Says:
    """A policy of one word."""

    async def generate(self, *_: Any, **__: Any) -> Completion:
        return Completion(ids=[2], logprobs=[-1.0], finish_reason="stop")


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        (True, "in doubt: SandboxLost: SandboxGone: its process is dead"),
        (False, "sandbox: SandboxGone: its process is dead"),
    ],
)
async def test_a_sandbox_that_is_gone_when_the_work_is_read_is_in_doubt_once_the_policy_was_heard(
    queue: Queue, asks: bool, said: str
) -> None:
    await queue.admitted()
    [held] = await queue.take(Stage.INIT)
    await queue.store.advance([Advance(held, None, b"")])
    stage = RunStage(Registry([Leaves(asks=asks)]), None, queue.store, lambda *_: Says(), "n0")
    move = await stage.perform(await claimed(queue, Stage.RUN))
    assert isinstance(move.item, Fail)
    assert move.item.detail == said
