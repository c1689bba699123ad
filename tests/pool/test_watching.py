"""Calls that owe an answer: one call for one token stands for all of a process, and what is silent is said at once."""

import asyncio
from typing import Any

import pytest

from prorl_mq.schema.items import Claim
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import FakeFault
from tests.pool.conftest import in_run, joined, turn, until
from tests.support.queue import Queue, spec
from workers.inference import one_token, watching
from workers.inference.one_token import OneToken
from workers.inference.protocol import Silent
from workers.inference.run_clock import RunClock
from workers.inference.waits import Waits
from workers.inference.watching import CallWatch
from workers.stages.backends import Pools
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
CALLS = 8


@pytest.fixture
async def hanging(queue: Queue, pools: Pools, fakes: Any) -> FakeBackend:
    """It has answered its probe, and answers nothing since."""
    backend: FakeBackend = await fakes()
    await joined(queue, backend)
    view = await pools.view("policy")
    info = view.backends[backend.address].info
    assert info is not None
    await pools.describe("policy", info)
    backend.fault = FakeFault.HANG
    return backend


def asked_for_one(backend: FakeBackend) -> int:
    """Calls for one token under way."""
    return sum(each.call.params.max_tokens == 1 and each.state == "running" for each in backend.requests)


async def owed(queue: Queue, pools: Pools, *, shared: bool = True) -> "list[asyncio.Task[Any]]":
    """Turns of jobs that may be silent for 200 s."""
    tasks = []
    for held in await in_run(queue, n=CALLS):
        policy = pools.policy(Work(held=held, claim=Claim("claimed", held.token), spec=spec()), RunClock(1_800.0))
        if not shared:
            policy._watch = CallWatch(pools.waits)
        tasks.append(asyncio.create_task(turn(policy)))
    return tasks


async def ended(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_backend_that_hangs_is_said_long_before_it_is_given_up_and_asked_once(
    queue: Queue, pools: Pools, hanging: FakeBackend
) -> None:
    tasks = await owed(queue, pools)

    async def told() -> bool:
        return pools.waits.text == f"backend {hanging.address} has not answered for some seconds ({CALLS} jobs)"

    await until(told)
    assert asked_for_one(hanging) == 1
    assert not any(task.done() for task in tasks)
    await ended(tasks)
    await hanging.wait_running(0)
    assert pools.waits.text == ""


async def test_without_one_watch_for_all_each_call_has_a_call_beside_it(
    queue: Queue, pools: Pools, hanging: FakeBackend
) -> None:
    """The control."""
    tasks = await owed(queue, pools, shared=False)

    async def all_asked() -> bool:
        return asked_for_one(hanging) == CALLS

    await until(all_asked)
    await ended(tasks)


async def test_without_early_calls_for_a_token_nothing_is_said(
    queue: Queue, pools: Pools, hanging: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: only a third of the silence counts."""
    monkeypatch.setattr(watching, "ASK_S", float("inf"))
    tasks = await owed(queue, pools)
    with pytest.raises(TimeoutError):
        await until(lambda: _true(pools.waits.text != ""), within_s=4.0)
    await ended(tasks)


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize(("kept_s", "sent"), [(600.0, 1), (0.0, 100)])
async def test_an_answer_is_kept_so_that_long_answers_cost_few_calls(
    monkeypatch: pytest.MonkeyPatch, kept_s: float, sent: int
) -> None:
    """With the control: what is kept for no time is asked for again and again."""
    monkeypatch.setattr(one_token, "KEPT_S", kept_s)
    tokens, calls = OneToken(), list[str]()
    owed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def send() -> Any:
        calls.append("one token")

    for _ in range(100):
        await tokens.seconds("a", send, owed, 60.0)
    assert len(calls) == sent


@pytest.mark.parametrize(
    ("answers_others", "raised"), [(True, TimeoutError), (False, Silent)], ids=["guarded", "control"]
)
async def test_a_lost_call_for_a_token_is_no_silence_of_a_backend_that_answers_others(
    answers_others: bool, raised: type[Exception]
) -> None:
    """Late, not silent: the call for a token waits behind a full batch, or was lost alone."""
    watch = CallWatch(Waits())
    call: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    clock = RunClock(1.2)  # 0.2 s of silence

    async def never() -> Any:
        if answers_others:
            watch.tokens.heard("a")
        await asyncio.Event().wait()

    with pytest.raises(raised):
        await watch.answer_or_silence(call, never, clock, "a", 1e6)
