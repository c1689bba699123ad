"""Weights of SGLang backends, by its own routes, which refuse every field that they do not define."""

import asyncio

import pytest

from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.store import pools as backends
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import SGLANG_GENERATE
from tests.pool.conftest import attempt, in_run
from tests.support.queue import POOL, Queue

pytestmark = pytest.mark.anyio
TOKENS = 3_000
LOADING = ["/update_weights_from_disk", "/update_weight_version", "/flush_cache", "/continue_generation"]


async def joined(queue: Queue, fakes) -> FakeBackend:
    """A backend whose protocol nobody has named."""
    fake = await fakes(routes={SGLANG_GENERATE})
    await backends.add(queue.store, POOL, fake.address)
    return fake


@pytest.mark.parametrize("mode", ["keep", "drain", "abort"])
async def test_an_idle_backend_gets_the_weights(queue, control, fakes, mode) -> None:
    fake = await joined(queue, fakes)
    await queue.store.announce(POOL, 7, mode, "/weights/7")
    await Weights(queue.store, control).turn()
    [told] = (await backends.policy_status(queue.store, POOL)).backends
    assert (told.step, told.serves, told.error) == ("done", "7", None)
    assert fake.calls == (LOADING if mode == "drain" else ["/pause_generation", *LOADING])
    assert (fake.loaded, fake.version, fake.paused) == (["/weights/7"], "7", False)


async def turn_under_way(queue: Queue, control, pools, fakes, mode: str):
    """A turn of many tokens that weights of another version meet."""
    fake = await joined(queue, fakes)
    await BackendHealth(queue.store, control).turn()
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await policy.generate([11, 12], max_tokens=1, temperature=1.0)
    fake.latency_ms = 3_000
    task = asyncio.create_task(policy.generate([11, 12, 13], max_tokens=TOKENS, temperature=1.0))
    await fake.wait_running(1)
    await queue.store.announce(POOL, 7, mode, "/weights/7")
    updating = asyncio.create_task(Weights(queue.store, control).turn())
    answer = await task
    await updating
    [told] = (await backends.policy_status(queue.store, POOL)).backends
    assert (told.step, told.error) == ("done", None)
    return fake, answer


async def test_turns_that_are_kept_go_on_and_tell_both_versions(queue, control, pools, fakes) -> None:
    _, answer = await turn_under_way(queue, control, pools, fakes, "keep")
    assert answer.version == ("default", "7")
    assert len(answer.ids) == TOKENS


async def test_turns_that_are_drained_end_under_the_old_weights(queue, control, pools, fakes) -> None:
    fake, answer = await turn_under_way(queue, control, pools, fakes, "drain")
    assert answer.version == ("default", "default")
    assert fake.version == "7"


async def test_turns_that_are_cut_keep_their_tokens_and_end_under_the_new_weights(queue, control, pools, fakes) -> None:
    fake, answer = await turn_under_way(queue, control, pools, fakes, "abort")
    assert answer.version is not None
    assert answer.version[1] == "7"
    assert len(answer.ids) == TOKENS
    assert "aborted" in fake.states()


async def test_its_health_is_asked_where_no_token_is_sampled(queue, control, fakes) -> None:
    fake = await joined(queue, fakes)
    health = BackendHealth(queue.store, control, every_s=0.01)
    await health.turn()
    [shown] = await backends.listing(queue.store, POOL)
    assert (shown.version, shown.alive) == ("default", True)
    assert await control.alive(fake.address)
    fake.healthy = False
    assert not await control.alive(fake.address)
