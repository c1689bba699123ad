"""Backends that are missing, dead, silent or too slow, at real workers: no reward comes of it, and it is said why."""

from collections.abc import Mapping

import httpx
import pytest

from prorl_mq.cli.overview import overview
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Outcome, Stage, Task, Verdict
from prorl_mq.service import inspect, submit
from prorl_mq.service import overview as service_overview
from prorl_mq.store import gauges, pools, streams
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import patiently
from prorl_mq.store.store import Store
from tests.support.service import gather, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(280)]
GROUPS = ("missing", "dead", "hanging", "slow", "stuck", "alive")
LIMITS = Limits(run_ms=12_000, max_attempts=1)  # 6 s of waits in a turn, 2 s of silence
LONGER = Limits(run_ms=30_000, max_attempts=1)  # 5 s of silence: a third of it, and a second, pass before it is said


def batch(pool: str, name: str = "") -> BatchRequest:
    task = Task(task_id=pool, data_source="chaos", payload={"secret": "CANARY-1", "llm": True})
    limits = LONGER if pool == "stuck" else LIMITS
    groups = [GroupRequest(task=task, n=2, max_refills=0)]
    return BatchRequest(run_id="chaos", batch_id=name or pool, pool=pool, limits=limits, groups=groups)


async def started(world: World, store: Store) -> None:
    world.start_redis()
    await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
    await patiently(lambda: streams.ensure(store.redis, streams.shared(store.keys)), outage_ms=20_000)
    world.start_api(0)
    for stage in Stage:
        world.start_worker(stage, 0, "--slots", "16")

    async def known() -> bool:
        return bool(await store.read("HLEN", store.keys.schemas))

    await until(known, within_s=90)


async def changed(address: str, program: Mapping[str, object]) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        (await http.post(f"{address}/fake", json=program)).raise_for_status()


async def joined(world: World, store: Store, pool: str, program: Mapping[str, object]) -> str:
    """The address of a backend of its own, known to speak its protocol: what it does then no probe has shown."""
    address = world.start_backend()
    await changed(address, program)
    await pools.add(store, f"default:{pool}", address, protocol="vllm-generate")
    return address


async def test_backends_that_do_not_work_earn_nothing_and_are_named(world: World) -> None:
    async with store_of(world) as store:
        await started(world, store)
        await pools.add(store, "default:dead", "http://127.0.0.1:9", protocol="vllm-generate")
        hanging_at = await joined(world, store, "hanging", {"fault": "hang"})
        hanging, world.backend = world.backend, None
        slow_at = await joined(world, store, "slow", {"latency_ms": 3_600_000})
        slow, world.backend = world.backend, None
        stuck_at = await joined(world, store, "stuck", {})
        stuck, world.backend = world.backend, None
        await submit.accept(store, "default", batch("stuck", "before"))
        await gather(store, None, 1, within_s=60)
        await changed(stuck_at, {"fault": "hang"})  # the worker has probed it, and calls it at once
        await joined(world, store, "alive", {"latency_ms": 300})
        reasons = {
            "missing": "no living backend in pool 'missing': it has none",
            "dead": "no living backend in pool 'dead': ",
            "hanging": f"backend {hanging_at} has not answered its probe",
            "slow": f"backend {slow_at} has not answered its probe",
            "stuck": f"backend {stuck_at} has not answered for some seconds",
        }
        said = set[str]()
        try:
            for pool in GROUPS:
                await submit.accept(store, "default", batch(pool))

            async def told() -> bool:
                """`status`, the web page's overview and `job` say each while its jobs wait."""
                screen = "\n".join(await overview(store, await gauges.read(store)))
                page = " ".join((await service_overview.read(store)).waits)
                for pool, reason in reasons.items():
                    job = (await inspect.job_status(store, JobRef(f"default:chaos:{pool}-0:0"))).why or ""
                    if "waits: " in screen and all(reason in each for each in (screen, page, job)):
                        said.add(pool)
                return said == reasons.keys()

            await until(told)
            records = {each.batch_id: each for each in await gather(store, None, len(GROUPS) + 1, within_s=120)}
        finally:
            for process in (hanging, slow, stuck):
                assert process is not None
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
    assert records.pop("before").verdict is Verdict.ACCEPTED
    verdicts = {name: record.verdict for name, record in records.items()}
    assert verdicts == dict.fromkeys(GROUPS[:-1], Verdict.FAILED) | {"alive": Verdict.ACCEPTED}
    for name in GROUPS[:-1]:
        for sample in records[name].samples:
            assert (sample.outcome, sample.reward) == (Outcome.INFRA_ERROR, None), name
            assert sample.error is not None
            assert sample.error.cause is Cause.BACKEND, sample.error
    assert "cause=backend failed: Stalled" in world.log("run-0")
