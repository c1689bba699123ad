"""Weights: the service has every backend of a pool load what was announced, whatever dies on the way."""

import asyncio

import pytest

from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.store import policy, pools
from tests.pool.conftest import joined, until
from tests.support.queue import POOL, Queue

pytestmark = pytest.mark.anyio
ROUTES = ["/pause", "/collective_rpc", "/update_weight_version", "/reset_prefix_cache", "/resume"]


@pytest.fixture
def weights(queue, control) -> Weights:
    return Weights(queue.store, control)


async def steps(queue: Queue) -> dict[str, str | None]:
    return {each.address: each.step for each in (await pools.policy_status(queue.store, POOL)).backends}


@pytest.mark.parametrize("mode", ["keep", "drain", "abort"])
async def test_every_backend_is_paused_loaded_named_emptied_and_resumed(queue, weights, fakes, mode) -> None:
    one, two = await fakes(), await fakes()
    await joined(queue, one, two)
    await queue.store.announce(POOL, 7, mode, "/weights/7")
    await weights.turn()
    for fake in (one, two):
        assert fake.calls == ROUTES
        assert (fake.loaded, fake.version, fake.paused) == (["/weights/7"], "7", False)
    status = await pools.policy_status(queue.store, POOL)
    assert (status.version, status.mode, status.weights) == (7, mode, "/weights/7")
    assert [(each.step, each.serves, each.error) for each in status.backends] == [("done", "7", None)] * 2
    assert await weights.turn() > 0, "there is nothing more to do"
    assert one.calls == ROUTES


async def test_without_weights_nothing_is_touched(queue, weights, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    await queue.store.announce(POOL, 7, "abort", "")
    await weights.turn()
    assert fake.calls == []


async def test_a_process_that_dies_is_continued_by_the_next_one(queue, control, fakes) -> None:
    """One backend was done, the other was paused and loading."""
    quick, slow = await fakes(), await fakes()
    slow.load_ms = 60_000
    await joined(queue, quick, slow)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    first = asyncio.create_task(Weights(queue.store, control).turn())

    async def half_way() -> bool:
        return await steps(queue) == {quick.address: "done", slow.address: "paused"}

    await until(half_way)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert slow.paused
    slow.load_ms = 0
    await Weights(queue.worker("second").store, control).turn()
    assert await steps(queue) == {quick.address: "done", slow.address: "done"}
    assert (slow.loaded, slow.version, slow.paused) == (["/weights/7"], "7", False)
    assert quick.calls == ROUTES, "what was done is not done again"


async def test_a_backend_that_cannot_be_paused_goes_on_and_is_tried_again(queue, control, fakes) -> None:
    fake = await fakes()
    fake.refused["/pause"] = 404
    await joined(queue, fake)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await Weights(queue.store, control).turn()
    [told] = (await pools.policy_status(queue.store, POOL)).backends
    assert (told.step, told.tries) == ("failed", 1)
    assert "VLLM_SERVER_DEV_MODE=1" in (told.error or "")
    [shown] = await pools.listing(queue.store, POOL)
    assert shown.note is None, "its weights are as they were"
    assert not fake.paused


async def test_a_backend_whose_weights_loaded_half_gets_no_turn_until_they_are_loaded(
    queue, control, fakes, monkeypatch
) -> None:
    monkeypatch.setattr("prorl_mq.duties.load_weights.AGAIN_MS", 0)
    fake = await fakes()
    fake.refused["/collective_rpc"] = 500
    await joined(queue, fake)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await Weights(queue.store, control).turn()
    view = await pools.view(queue.store, POOL)
    assert "could not be loaded" in (view.unfit(fake.address) or "")
    assert fake.paused, "turns under way must not continue with them"
    fake.refused.clear()
    await Weights(queue.store, control).turn()
    view = await pools.view(queue.store, POOL)
    assert view.unfit(fake.address) is None
    assert not fake.paused
    assert await steps(queue) == {fake.address: "done"}


async def test_one_that_restarts_or_joins_late_gets_the_weights_too(queue, control, weights, fakes) -> None:
    old = await fakes()
    await joined(queue, old)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await weights.turn()
    late = await fakes()
    await joined(queue, late)
    old.version = "default"  # its process was restarted
    await BackendHealth(queue.store, control, every_s=0.01).turn()
    await weights.turn()
    assert (old.loaded, late.loaded) == (["/weights/7"] * 2, ["/weights/7"])


async def test_a_trainer_that_is_ahead_is_not_rolled_back(queue, control, weights, fakes) -> None:
    fake = await fakes()
    fake.version = "8"
    await joined(queue, fake)
    await BackendHealth(queue.store, control, every_s=0.01).turn()
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await weights.turn()
    assert fake.calls == []


async def test_what_is_announced_meanwhile_wins(queue, control, fakes) -> None:
    fake = await fakes()
    fake.load_ms = 200
    await joined(queue, fake)
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    turn = asyncio.create_task(Weights(queue.store, control).turn())

    async def loading() -> bool:
        return await steps(queue) == {fake.address: "paused"}

    await until(loading)
    await queue.store.announce(POOL, 8, "keep", "/weights/8")
    await turn
    assert (await policy.progress(queue.store, POOL)) == {}
    await Weights(queue.store, control).turn()
    assert (fake.loaded, fake.version, fake.paused) == (["/weights/7", "/weights/8"], "8", False)
    assert await steps(queue) == {fake.address: "done"}
