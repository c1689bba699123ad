"""RUN's clock stands while infrastructure is waited for: what it does is never the policy's truncation."""

import asyncio
from typing import Any

import pytest

from prorl_mq.schema.ids import public
from prorl_mq.schema.items import Advance, Claim, Fail, Held
from prorl_mq.schema.messages import Stage
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import FakeFault
from tests.pool.conftest import in_run, joined, turn, until
from tests.support.queue import POOL, Queue, spec
from workers.inference.policy import StickyPolicy
from workers.inference.protocol import InferenceError
from workers.inference.run_clock import RunClock, Stalled
from workers.stages.backends import Pools
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
SHORT_S = 3.0  # a budget: 1.5 s of waits in a turn, 0.5 s of silence


def attempt(pools: Pools, held: Held, clock: RunClock) -> StickyPolicy:
    return pools.policy(Work(held=held, claim=Claim("claimed", held.token), spec=spec()), clock)


async def limited(policy: StickyPolicy, clock: RunClock, **more: Any) -> Any:
    """A turn under the limit that a handler sets."""
    async with clock.limit():
        return await turn(policy, **more)


@pytest.mark.parametrize("fault", ["missing", "dead", "hanging", "slow"])
async def test_a_pool_without_a_working_backend_is_no_truncation(
    queue: Queue, pools: Pools, fakes: Any, fault: str
) -> None:
    """The attempt fails with the cause, and the policy has used none of its time."""
    [held] = await in_run(queue)
    if fault != "missing":
        backend: FakeBackend = await fakes(latency_ms=3_600_000 if fault == "slow" else 0)
        backend.fault = FakeFault.HANG if fault == "hanging" else None
        await joined(queue, backend)
        if fault == "dead":
            await backend.stop()
        await until_probed(pools, backend, fault)
    clock = RunClock(SHORT_S)
    with pytest.raises(InferenceError) as caught:
        await limited(attempt(pools, held, clock), clock)
    assert caught.value.cause == "backend"
    assert clock.left_s > 0
    if fault != "dead":  # a call that is refused fails at once, and the last allowed one ends the attempt
        assert isinstance(caught.value, Stalled)
        assert clock.stalled_s >= SHORT_S / 2


async def until_probed(pools: Pools, backend: FakeBackend, fault: str) -> None:
    """One that hangs or is slow has answered its probe, as the worst of them do."""
    if fault == "dead":
        return
    latency_ms, hang = backend.latency_ms, backend.fault
    backend.latency_ms, backend.fault = 0, None
    view = await pools.view("policy")
    info = view.backends[backend.address].info
    assert info is not None
    await pools.describe("policy", info)
    backend.latency_ms, backend.fault = latency_ms, hang


async def test_without_the_clock_a_missing_backend_takes_the_policys_time(queue: Queue, pools: Pools) -> None:
    """The control: a limit that does not move ends the turn."""
    [held] = await in_run(queue)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S / 6):
            await turn(attempt(pools, held, RunClock(SHORT_S)))


async def test_a_call_that_hangs_is_moved_to_another_backend(queue: Queue, pools: Pools, fakes: Any) -> None:
    first, second = await fakes(), await fakes()
    await joined(queue, first, second)
    [held] = await in_run(queue)
    clock = RunClock(20.0)
    policy = attempt(pools, held, clock)
    stuck = (await limited(policy, clock)).backend
    for fake in (first, second):
        fake.fault = FakeFault.HANG if fake.address == stuck else None
    answer = await limited(policy, clock)
    assert answer.backend != stuck
    assert policy.moves == 1
    assert clock.stalled_s > 0


async def test_a_single_call_that_is_lost_is_sent_again(queue: Queue, pools: Pools, fakes: Any) -> None:
    """Its backend answers others: only the time that an answer may take shows it."""
    backend = await fakes()
    await joined(queue, backend)
    [held] = await in_run(queue)
    clock = RunClock(20.0)
    policy = attempt(pools, held, clock)
    await limited(policy, clock)
    backend.fail_next(FakeFault.HANG)
    assert len((await limited(policy, clock)).ids) == 4


async def test_a_slow_backend_that_answers_in_time_is_waited_for(queue: Queue, pools: Pools, fakes: Any) -> None:
    backend = await fakes(latency_ms=1_500)
    await joined(queue, backend)
    [held] = await in_run(queue)
    clock = RunClock(40.0)
    assert len((await limited(attempt(pools, held, clock), clock)).ids) == 4
    assert clock.left_s < 40.0 - 1.5


async def test_a_long_answer_of_a_living_backend_takes_the_policys_time(queue: Queue, pools: Pools, fakes: Any) -> None:
    """Truncated, as before: the call for one token shows that the backend works."""
    backend = await fakes(token_ms=30)
    await joined(queue, backend)
    [held] = await in_run(queue)
    clock = RunClock(5.0)
    with pytest.raises(TimeoutError):
        await limited(attempt(pools, held, clock), clock, tokens=10_000)
    assert backend.requests[-1].call.params.max_tokens == 1


async def test_a_worker_tells_what_its_jobs_wait_for(queue: Queue, pools: Pools, fakes: Any) -> None:
    [held] = await in_run(queue)
    clock = RunClock(60.0)
    waiting = asyncio.create_task(limited(attempt(pools, held, clock), clock))

    async def told() -> bool:
        return pools.waits.text == f"no living backend in pool {public(POOL)!r}: it has none (1 job)"

    await until(told)
    await joined(queue, await fakes())
    assert len((await waiting).ids) == 4
    assert pools.waits.text == ""


async def test_what_a_failed_attempt_hands_on_is_found_by_the_next(queue: Queue) -> None:
    """The doubt about a sandbox survives until INIT; a failure that hands nothing on leaves what was there."""
    [held] = await in_run(queue)
    assert await queue.store.fail([Fail(held, Stage.INIT, 0, "in doubt", carry=b"doubt")]) == ["delayed"]
    assert await queue.command("HGET", queue.keys.job(held.ref), "carry") == b"doubt"
    assert await queue.store.promote([(held.ref, queue.keys.stage(Stage.INIT))]) == ["promoted"]
    [again] = await queue.take(Stage.INIT)
    assert await queue.store.advance([Advance(again, None, b"more")]) == ["advanced"]
