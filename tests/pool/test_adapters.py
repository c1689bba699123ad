"""A pool whose policy is a LoRA adapter: requests name its version, which is the version of their tokens."""

import asyncio

import pytest

from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.store import pools as backends
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import SGLANG_GENERATE, VLLM_GENERATE
from tests.pool.conftest import attempt, in_run, turn
from tests.support.queue import POOL, Queue

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("route", [VLLM_GENERATE, SGLANG_GENERATE])


async def joined(queue: Queue, fakes, route: str) -> FakeBackend:
    fake = await fakes(routes={route})
    await backends.add(queue.store, POOL, fake.address, adapter="skill")
    return fake


def named(fake: FakeBackend) -> list[str | None]:
    """What generating requests named, probes left out."""
    return [each.call.model for each in fake.requests if len(each.call.prompt_ids) > 1]


@both
async def test_the_service_loads_versions_beside_each_other_and_pauses_nothing(queue, control, pools, fakes, route):
    fake = await joined(queue, fakes, route)
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    for version in (7, 8, 9):
        await queue.store.announce(POOL, version, "keep", f"/adapters/{version}")
        await Weights(queue.store, control).turn()
        pools.look_again(POOL)
        answer = await turn(policy)
        assert answer.version == (str(version), str(version))
        assert {span.version for span in answer.spans} == {(str(version), str(version))}
    assert named(fake) == ["skill@7", "skill@8", "skill@9"]
    assert fake.adapters == {"skill@8": "/adapters/8", "skill@9": "/adapters/9"}, "turns may still name the one before"
    assert not [route for route in fake.calls if "pause" in route or "resume" in route or "weight" in route]
    [told] = (await backends.policy_status(queue.store, POOL)).backends
    assert (told.step, told.serves) == ("done", "9")


@both
async def test_a_turn_under_way_ends_on_the_version_that_it_names(queue, control, pools, fakes, route) -> None:
    fake = await joined(queue, fakes, route)
    await queue.store.announce(POOL, 7, "keep", "/adapters/7")
    await Weights(queue.store, control).turn()
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    fake.latency_ms = 400
    under_way = asyncio.create_task(turn(policy, tokens=50))
    await fake.wait_running(1)
    await queue.store.announce(POOL, 8, "keep", "/adapters/8")
    await Weights(queue.store, control).turn()
    assert (await under_way).version == ("7", "7")


@both
async def test_what_the_trainer_loads_itself_is_found_by_its_name(queue, control, pools, fakes, route) -> None:
    fake = await joined(queue, fakes, route)
    fake.load_adapter("skill", "/adapters/now")
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    assert (await turn(policy)).version is None, "its name tells no version, and the base model's is another's"
    for version in ("skill@3", "skill@12", "other@99"):
        fake.load_adapter(version, "/adapters")
    await BackendHealth(queue.store, control, every_s=0.01).turn()
    pools.look_again(POOL)
    assert (await turn(policy)).version == ("12", "12")
    assert named(fake) == ["skill", "skill@12"]


async def test_a_server_without_adapters_is_named_with_what_to_start_it_with(queue, control, fakes) -> None:
    fake = await joined(queue, fakes, VLLM_GENERATE)
    fake.refused["/v1/load_lora_adapter"] = 404
    await queue.store.announce(POOL, 7, "keep", "/adapters/7")
    await Weights(queue.store, control).turn()
    [told] = (await backends.policy_status(queue.store, POOL)).backends
    assert told.step == "failed"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in (told.error or "")
