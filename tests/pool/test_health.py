"""Health: every backend is probed, and what is found is in Redis for all workers."""

import asyncio
from typing import Any

import pytest

from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.probe_backends import BackendHealth, BackendPressure
from prorl_mq.rules.breaker import MISSES
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from tests.pool.conftest import joined
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


@pytest.fixture
def health(queue: Queue, control: BackendControl) -> BackendHealth:
    return BackendHealth(queue.store, control, every_s=0.01)


async def test_a_backend_that_does_not_answer_is_dead_and_comes_back_on_trial(queue, health, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    await fake.stop()
    for _ in range(MISSES):
        await health.turn()
    [shown] = await pools.listing(queue.store, POOL)
    assert (shown.alive, shown.breaker, shown.state) == (False, "open", "ready")
    await fake.start()
    await health.turn()
    [shown] = await pools.listing(queue.store, POOL)
    assert (shown.alive, shown.breaker) == (True, "open"), "whether it serves is for a trial to show"


async def test_a_fault_of_its_health_route_counts_and_a_missing_route_does_not(queue, health, fakes) -> None:
    ill, bare = await fakes(), await fakes()
    ill.healthy = False
    bare.refused["/health"] = 404
    await joined(queue, ill, bare)
    for _ in range(MISSES):
        await health.turn()
    alive = {shown.address: shown.alive for shown in await pools.listing(queue.store, POOL)}
    assert alive == {ill.address: False, bare.address: True}


async def test_a_healthy_pool_costs_no_writes(queue, health, fakes) -> None:
    """Two seconds apart without limit, in a pool of hundreds."""
    fake = await fakes()
    await joined(queue, fake)
    await health.turn()
    watch = Watch(queue.redis, queue.keys)
    await watch.look()
    await health.turn()
    await watch.nothing_changed()


async def test_the_version_that_a_backend_tells_is_known_and_forgotten(queue, health, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    told = []
    for version, tells in (("default", True), ("7", True), ("8", False)):
        fake.version, fake.tells_version = version, tells
        await health.turn()
        [shown] = await pools.listing(queue.store, POOL)
        told.append(shown.version)
    assert told == ["default", "7", None]


async def test_the_model_that_a_backend_names_is_known_and_forgotten(queue, health, fakes) -> None:
    """Also with another model at the same address. Adapters are not the model."""
    fake = await fakes()
    await joined(queue, fake)
    fake.adapters["skill@8"] = "/adapters/8"
    told = []
    for model, root in (("one", ""), ("one", "/models/a"), ("other", "")):
        fake.model, fake.model_root = model, root
        await health.turn()
        [shown] = await pools.listing(queue.store, POOL)
        status = await pools.policy_status(queue.store, POOL)
        assert [each.served for each in status.backends] == [shown.served]
        told.append(shown.served)
    fake.refused["/v1/models"] = 404
    await health.turn()
    [shown] = await pools.listing(queue.store, POOL)
    assert [*told, shown.served] == ["one", "one (/models/a)", "other", None]


async def test_weights_that_the_service_loads_are_no_other_model(queue, health, fakes) -> None:
    """SGLang serves them under the name of their directory. The control: a directory that was not announced."""
    fake = await fakes()
    fake.model = "base"
    await joined(queue, fake)
    await health.turn()
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    for model, shown in (("/weights/7", "base"), ("/weights/8", "/weights/8")):
        fake.model = model
        await health.turn()
        assert [each.served for each in await pools.listing(queue.store, POOL)] == [shown]


async def test_a_drained_backend_leaves_when_its_last_job_has_ended(queue, health, fakes) -> None:
    fake = await fakes()
    held = await queue.hold(Stage.RUN)
    await pools.add(queue.store, POOL, "http://b1")
    await joined(queue, fake)
    assert await pools.remove(queue.store, POOL, "http://b1", drain=True) == "draining"
    await health.turn()
    states = {shown.address: shown.state for shown in await pools.listing(queue.store, POOL)}
    assert states == {"http://b1": "draining", fake.address: "ready"}
    await queue.store.release([held])
    await health.turn()
    assert [shown.address for shown in await pools.listing(queue.store, POOL)] == [fake.address]


async def test_a_removed_backend_is_shown_until_its_last_job_lets_go(queue, health) -> None:
    held = await queue.hold(Stage.RUN)
    await pools.add(queue.store, POOL, "http://b1")
    await pools.remove(queue.store, POOL, "http://b1", drain=False)
    await health.turn()
    [shown] = await pools.listing(queue.store, POOL)
    assert (shown.state, shown.in_flight) == ("left", 1)
    await queue.store.release([held])
    await health.turn()
    assert await pools.listing(queue.store, POOL) == []


async def test_two_probers_at_once_lose_no_evidence(queue, control, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    await fake.stop()
    await asyncio.gather(*(BackendHealth(queue.store, control, every_s=0.01).turn() for _ in range(MISSES)))
    [shown] = await pools.listing(queue.store, POOL)
    assert not shown.alive


@pytest.mark.parametrize("guarded", [True, False])
async def test_metrics_that_fail_are_no_fault_of_a_probe(
    queue, health, fakes, control, monkeypatch, guarded: bool
) -> None:
    """The control asks for them before it tells what it has found: their fault ends the probe."""

    async def fails(*_: object) -> list[bytes]:
        raise ControlFailed("more bytes of metrics than are read")

    async def before(self: BackendHealth, address: str, *_: object) -> dict[str, str]:
        return {"room": str(await self._control.load_lines(address))}

    monkeypatch.setattr(control, "load_lines", fails)
    if not guarded:
        monkeypatch.setattr(BackendHealth, "_facts", before)
    fake = await fakes()
    await joined(queue, fake)
    fake.healthy = False
    for _ in range(MISSES):
        await health.turn()
    fake.healthy = True
    await health.turn()
    [shown] = await pools.listing(queue.store, POOL)
    assert shown.alive is guarded


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_dead_backend_is_asked_for_no_metrics(
    queue, health, fakes, control, monkeypatch, guarded: bool
) -> None:
    """One that hangs would cost each probe another time-out. The control asks it all the same."""
    asked, real, look = list[str](), control.load_lines, BackendPressure.look

    async def noted(address: str, reach: object = None) -> list[bytes]:
        asked.append(address)
        return list(await real(address, reach))

    async def always(self: BackendPressure, *about: Any, alive: bool, loading: bool) -> str:
        assert not alive
        return str(await look(self, *about, alive=True, loading=loading))

    monkeypatch.setattr(control, "load_lines", noted)
    if not guarded:
        monkeypatch.setattr(BackendPressure, "look", always)
    fake = await fakes()
    await joined(queue, fake)
    fake.healthy = False
    await health.turn()
    assert asked == ([] if guarded else [fake.address])
