"""Models of other pools, which a rollout asks beside its policy."""

from collections.abc import Awaitable, Callable

import pytest

from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.schema.items import Claim
from prorl_mq.schema.messages import Sampling
from prorl_mq.store import pools as backends
from prorl_mq.testing.fake_backend import FakeBackend
from tests.pool.conftest import PROMPT, in_run
from tests.support.queue import POOL, Queue, spec
from workers.handler import NoModels
from workers.inference.logprobs import LogprobsRefused
from workers.inference.run_clock import RunClock
from workers.stages import models
from workers.stages.backends import Pools
from workers.stages.contexts import RunContext
from workers.stages.models import ForeignPool, PoolModels
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
OWN, CRITIC = POOL, f"{POOL}:critic"  # of the tenant that the pool of these jobs is named after


@pytest.fixture(autouse=True)
def renderers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def named(pool: str) -> str:
        return f"the renderer of {pool}"

    monkeypatch.setattr(models, "pool_renderer", named)


async def context(queue: Queue, pools: Pools, sampling: Sampling | None = None) -> RunContext:
    [held] = await in_run(queue)
    asked = spec() if sampling is None else spec(sampling=sampling)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=asked)
    return RunContext(work, None, None, pools.policy, RunClock(60), models=PoolModels(pools))


async def test_a_model_of_another_pool_is_asked_there_and_the_policy_where_it_was(
    queue: Queue, pools: Pools, fakes: Callable[..., Awaitable[FakeBackend]]
) -> None:
    """Each by a backend of its own pool; the job holds the policy's alone."""
    ours, theirs = await fakes(), await fakes()
    for pool, fake in ((OWN, ours), (CRITIC, theirs)):
        await backends.add(queue.store, pool, fake.address, protocol="vllm-generate")
    here = await context(queue, pools)
    model = await here.model("critic")
    said = [await each.generate(PROMPT, max_tokens=4, temperature=1.0) for each in (here.policy, model.policy)]
    assert [each.backend for each in said] == [ours.address, theirs.address]
    assert model.renderer == f"the renderer of {CRITIC}"
    held = {pool: await queue.command("ZRANGE", queue.keys.pool(pool), 0, -1, "WITHSCORES") for pool in (OWN, CRITIC)}
    assert held == {OWN: [ours.address.encode(), b"1"], CRITIC: [theirs.address.encode(), b"0"]}


async def test_a_model_that_is_trained_has_log_probabilities_as_exact_as_the_policys(
    queue: Queue, pools: Pools, fakes: Callable[..., Awaitable[FakeBackend]]
) -> None:
    """The control: of one that is not trained any will do."""
    fake = await fakes(logprobs_mode="raw")
    await backends.add(queue.store, CRITIC, fake.address, protocol="vllm-generate")
    here = await context(queue, pools, Sampling(temperature=0.7))
    frozen, trained = await here.model("critic"), await here.model("critic", trained=True)
    assert (frozen.trained, trained.trained) == (False, True)
    assert (await frozen.policy.generate(PROMPT, max_tokens=4, temperature=0.7)).ids
    with pytest.raises(LogprobsRefused, match="importance ratios from them would be wrong"):
        await trained.policy.generate(PROMPT, max_tokens=4, temperature=0.7)


async def test_a_rollout_asks_no_pool_of_another_tenant(queue: Queue, pools: Pools) -> None:
    """Its code and its rows are a tenant's. The control: one of its own by its whole name."""
    here = await context(queue, pools)
    with pytest.raises(ForeignPool, match="another tenant's") as raised:
        await here.model("somebody:critic")
    assert cause_of(raised.value) is Cause.ROW
    assert (await here.model(CRITIC)).policy


async def test_without_pools_no_model_is_asked(queue: Queue, pools: Pools) -> None:
    [held] = await in_run(queue)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    with pytest.raises(NoModels, match="only the workers of a service"):
        await RunContext(work, None, None, pools.policy, RunClock(60)).model("critic")
