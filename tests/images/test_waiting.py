"""Jobs wait for images without a slot, a budget or an attempt, and end with the reason where one cannot be had."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.duties.running import running
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import JobRef, group_ref, job_ref, run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, SampleRecord, Stage, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import inspect, submit
from prorl_mq.store import breakers, results
from prorl_mq.store.images import records as images
from prorl_mq.store.server.connection import RedisSettings
from sandbox.fake import FakeProvider, FakeSandbox
from sandbox.host import unprivileged
from sandbox.images.cache import ImageCache
from sandbox.images.layers.fetching import Fetching
from sandbox.images.layers.storage import BlobStorage
from sandbox.images.registry.logins import Logins
from sandbox.images.source import image_source
from sandbox.protocol import SandboxSpec
from tests.integration.test_families import Installed, no_policy
from tests.support.queue import Queue
from tests.support.registry import PLAIN, LoopbackRegistry, archive, file
from tests.worker.conftest import queue
from tests.worker.stage import made, until
from workers.handler import Prepared, Ran, Score
from workers.node.images import fetches, turns, waiting
from workers.node.images.fetches import Fetches
from workers.node.images.leases import BlobLeases
from workers.node.images.waiting import ImageWaits
from workers.node.starts import WatchedProvider
from workers.process.worker import Worker
from workers.settings import WorkerSettings
from workers.stages.eval import EvalStage
from workers.stages.guarded import GuardedStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.stage import StageRunner

__all__ = ["queue"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

RUN = run_ref("default", "images")
Wait = Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]


class Boxed(Installed):
    """A family whose INIT wants a sandbox of the row's image, and catches nothing."""

    schema = Schema(open_ended=True)

    async def init(self, context: Any) -> Prepared:
        await context.sandbox(context.job.payload.get("image"))
        await context.close()
        return Prepared()

    async def run(self, context: Any) -> Ran:
        return Ran(trajectory=None, export=1)

    async def eval(self, context: Any) -> Score:
        return Score(reward=1.0)


class InBudget(FakeProvider):
    """The control: fetches inside of the sandbox's start, as if nobody waited for images."""

    def __init__(self, cache: ImageCache, node: str) -> None:
        super().__init__(node=node)
        self._cache = cache

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        if spec.image is not None:
            (await self._cache.fetch(spec.image)).close()
        return await super().create(spec)


class Farm:
    """Workers of all stages on some nodes, whose INIT has one slot; caches of their own over one storage."""

    def __init__(self, settings: RedisSettings, stack: contextlib.AsyncExitStack, queue: Queue, place: Path) -> None:
        self._settings = settings
        self._stack = stack
        self._place = place
        self.store = queue.store
        self._count = 0
        self.caches: dict[str, ImageCache] = {}

    async def start(self, *nodes: str, waits: bool = True, limit_bytes: int = 1 << 30) -> None:
        for node in nodes:
            for stage in Stage:
                await self._one(node, stage, waits=waits, limit_bytes=limit_bytes)
        self._count += 3 * len(nodes)

        async def alive() -> bool:
            return int(await self.store.read("ZCARD", self.store.keys.workers)) == self._count

        await until(alive)

    async def _one(self, node: str, stage: Stage, *, waits: bool, limit_bytes: int) -> None:
        settings = WorkerSettings(
            stage=stage, redis=self._settings, slots=1, node=node, name=f"{stage}-{node}", sandbox="none",
            lease_ms=3_000, grace_ms=5_000,
        )  # fmt: skip
        registry = Registry([Boxed("boxed")])
        worker = await self._stack.enter_async_context(made(settings, registry))
        stage_runner = self._stage(worker, waits=waits, limit_bytes=limit_bytes)
        guarded = GuardedStage(stage_runner, stage, worker.store, worker.shared, node)
        task = asyncio.create_task(worker.run(guarded))

        async def drain() -> None:
            worker.drain()
            await task

        self._stack.push_async_callback(drain)

    def _stage(self, worker: Worker, *, waits: bool, limit_bytes: int) -> StageRunner:
        stage, node, store = worker.settings.stage, worker.settings.node, worker.store
        if stage is Stage.RUN:
            return RunStage(worker.registry, FakeProvider(), store, no_policy, node)
        if stage is Stage.EVAL:
            return EvalStage(worker.registry, FakeProvider(), store)
        storage = BlobStorage(self._place / "blobs")
        fetching = Fetching(storage, Logins(), {}, BlobLeases(store), most_bytes=limit_bytes)

        async def keep() -> set[str]:
            return await images.pinned(store)

        cache = ImageCache(self._place / node, [], unprivileged.identity(), limit_bytes, fetching, keep)
        self.caches[node] = cache
        own = Fetches(store, cache, storage, node)
        self._stack.push_async_callback(own.aclose)
        provider = FakeProvider(node=node) if waits else InBudget(cache, node)
        asked = ImageWaits(store, cache, own, node) if waits else None
        return InitStage(worker.registry, WatchedProvider(provider, worker.shared, worker.node, asked), store, node)

    async def submit(self, batch: str, names: Sequence[str | None], *, init_ms: int = 1_500, attempts: int = 1,
                     run: str = "images") -> None:  # fmt: skip
        tasks = [
            Task(task_id=f"{place}", data_source="boxed", payload={"image": name} if name else {})
            for place, name in enumerate(names)
        ]
        limits = Limits(max_attempts=attempts, backoff_ms=10, init_ms=init_ms)
        groups = [GroupRequest(task=task, n=1, max_refills=0) for task in tasks]
        request = BatchRequest(run_id=run, batch_id=batch, groups=groups, limits=limits)
        await submit.accept(self.store, "default", request)

    async def samples(self, count: int) -> list[SampleRecord]:
        """Those of so many more groups, as they end."""
        found: list[SampleRecord] = []
        while len(found) < count:
            for result in await results.collect(self.store, RUN, after="0", wait_ms=50):
                found += decode(result.record, GroupRecord).samples
                await results.acknowledge(self.store, RUN, [result.cursor])
        return found

    async def why(self, batch: str, group: int) -> str:
        return (await inspect.job_status(self.store, job_ref_of(batch, group))).why


def job_ref_of(batch: str, group: int) -> JobRef:
    return job_ref(group_ref(RUN, f"{batch}-{group}"), 0)


@pytest.fixture
async def farm(settings: RedisSettings, queue: Queue, place: Path) -> AsyncIterator[Farm]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(settings, name="api", lease_ms=3_000))
        yield Farm(settings, stack, queue, place)


def slow(registry: LoopbackRegistry, name: str = "slow", size: int = 1 << 20, rate: float = 400_000) -> str:
    """An image that takes longer than INIT's budget of these tests."""
    registry.bytes_per_s = rate
    return registry.push(name, [archive([file(name, os.urandom(size))])], media=PLAIN)


async def test_a_job_waits_for_its_image_without_slot_budget_or_attempt(farm: Farm, registry: LoopbackRegistry) -> None:
    name = slow(registry)
    await farm.start("n1")
    await farm.submit("b", [name, None, None])
    first, second = await farm.samples(2)  # pass the one that waits, though INIT has one slot
    assert {first.outcome, second.outcome} == {"completed"}
    seen: list[str] = []

    async def told() -> bool:
        waiting = [await farm.why("b", 0)]
        seen.extend(each for each in waiting if each not in seen)
        return any("% of 1.1 MB by node n1" in each for each in waiting)

    await until(told)
    [last] = await farm.samples(1)
    assert (last.outcome, last.attempt, last.failed) == ("completed", 0, ())


async def test_control_a_fetch_inside_of_inits_budget_costs_the_attempt(farm: Farm, registry: LoopbackRegistry) -> None:
    name = slow(registry)
    await farm.start("n1", waits=False)
    await farm.submit("b", [name])
    [sample] = await farm.samples(1)
    assert sample.outcome == "stage_timeout"


async def test_an_image_that_cannot_be_had_ends_its_jobs_with_the_reason_and_no_other_ones(
    farm: Farm, registry: LoopbackRegistry
) -> None:
    await farm.start("n1")
    await farm.submit("b", [f"docker://{registry.host}/no/such"] * 8 + [None], attempts=3)
    found = await farm.samples(9)
    assert Counter(each.outcome.value for each in found) == {"infra_error": 8, "completed": 1}
    errors = [each.error for each in found if each.error is not None]
    assert all(each.type == "ImageUnavailable" and "answers 404: there is no such image" in each.message
               for each in errors)  # fmt: skip
    assert await breakers.look(farm.store) == {}, "the family is not to blame"


async def test_nodes_at_once_fetch_each_blob_once(farm: Farm, registry: LoopbackRegistry) -> None:
    name = slow(registry, rate=1_000_000)
    await farm.start("n1", "n2")
    storage = BlobStorage(Path(farm.caches["n1"].directory.parent / "blobs"))
    both = [Fetches(farm.store, farm.caches[node], storage, node) for node in ("n1", "n2")]
    key = image_source(name).key
    records = await asyncio.gather(*(each.fetch(name, key) for each in both))
    assert [each.state for each in records] == ["ready", "ready"]
    assert {registry.asked[digest] for digest in registry.blobs} == {1}


async def test_a_job_is_left_to_a_node_that_has_its_image(
    farm: Farm, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a bound: where that node takes none, this one fetches."""
    name = registry.push("x", [archive([file("a", b"a")])])
    await farm.start("n1")
    await farm.submit("a", [name])
    await farm.samples(1)
    monkeypatch.setattr(waiting, "DECLINES", 1_000)
    await farm.start("n2")
    await farm.submit("b", [name] * 6)
    assert {each.outcome for each in await farm.samples(6)} == {"completed"}
    assert farm.caches["n1"].has(image_source(name).key)
    assert not farm.caches["n2"].has(image_source(name).key)


async def test_an_image_that_a_queued_job_names_is_kept_and_goes_when_the_job_is_over(
    farm: Farm, registry: LoopbackRegistry
) -> None:
    names = [registry.push(each, [archive([file(each, os.urandom(1 << 20))])]) for each in ("a", "b", "c")]
    await farm.start("n1", limit_bytes=5 << 19)
    store, cache = farm.store, farm.caches["n1"]
    await farm.submit("b", [None])
    await farm.samples(1)
    image = await cache.fetch(names[0])
    image.close()
    async with LoopbackRegistry() as busy:  # whose job waits for as long as the test wants
        await farm.submit("held", [slow(busy, "later", size=200_000, rate=12_000)])
        waits = job_ref_of("held", 0)

        async def named() -> bool:
            return bool(await images.pinned(store))

        await until(named)
        [later] = await images.pinned(store)
        await images.pin(store, waits, image.path.parent.name)  # as if it had named this one too
        assert await images.pinned(store) == {later, image.path.parent.name}
        for name in names[1:]:
            (await cache.fetch(name)).close()
        assert image.path.is_dir()
        assert not cache.has(image_source(names[1]).key)
        busy.bytes_per_s = None
        await farm.samples(1)
        assert await images.pinned(store) == set()
        (await cache.fetch(names[1])).close()
        assert not image.path.is_dir()


async def test_images_of_one_process_that_share_a_layer_fetch_it_once(farm: Farm, registry: LoopbackRegistry) -> None:
    """Redis knows a lease's process alone."""
    shared = archive([file("shared", os.urandom(1 << 20))])
    names = [registry.push(each, [shared, archive([file(each, b"x")])], media=PLAIN) for each in ("a", "b", "c")]
    registry.bytes_per_s = 1_000_000
    await farm.start("n1")
    here = Fetches(farm.store, farm.caches["n1"], BlobStorage(farm.caches["n1"].directory.parent / "blobs"), "n1")
    records = await asyncio.gather(*(here.fetch(name, image_source(name).key) for name in names))
    assert [each.state for each in records] == ["ready"] * 3
    assert registry.asked[registry.put(shared)] == 1


async def test_a_job_waits_for_room_while_images_of_other_jobs_fill_the_cache(
    farm: Farm, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NODES_S", 0.1)
    names = [registry.push(each, [archive([file(each, os.urandom(3 << 19))])]) for each in ("a", "b")]
    new = registry.push("new", [archive([file("new", b"x")])])
    await farm.start("n1", limit_bytes=5 << 19)
    cache = farm.caches["n1"]
    async with LoopbackRegistry() as busy:
        await farm.submit("held", [slow(busy, "later", size=300_000, rate=30_000)])

        async def named() -> bool:
            return bool(await images.pinned(farm.store))

        await until(named)
        for name in names:  # as if the job had named these as well
            await images.pin(farm.store, job_ref_of("held", 0), image_source(name).key)
            (await cache.fetch(name)).close()
        await farm.submit("b", [new])

        async def told() -> bool:
            return "it waits for room on node n1" in await farm.why("b", 0)

        await until(told)
        assert not cache.has(image_source(new).key)
        assert {each.outcome for each in await farm.samples(2)} == {"completed"}


async def test_a_run_with_many_images_does_not_keep_another_ones_image_waiting(
    farm: Farm, registry: LoopbackRegistry
) -> None:
    """test_turns.py has the control."""
    registry.bytes_per_s = 1_000_000
    many = [registry.push(f"many{each}", [archive([file("x", os.urandom(200_000))])], media=PLAIN)
            for each in range(24)]  # fmt: skip
    one = registry.push("one", [archive([file("x", b"x")])], media=PLAIN)
    await farm.start("n1")
    await farm.submit("many", many)

    async def busy() -> bool:
        return len(await images.all_of(farm.store)) >= turns.AT_ONCE

    async def there() -> bool:
        return farm.caches["n1"].has(image_source(one).key)

    await until(busy)
    await farm.submit("one", [one], run="other")
    await until(there)
    assert sum(farm.caches["n1"].has(image_source(each).key) for each in many) < 16
    assert {each.outcome for each in await farm.samples(24)} == {"completed"}


async def test_a_registry_that_fails_for_a_while_costs_a_job_one_attempt_for_each_fetch_that_failed(
    farm: Farm, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetches, "BACK_OFF_S", 0.01)
    monkeypatch.setattr(waiting, "FRESH_S", 2.0)
    name = registry.push("x", [archive([file("a", b"a")])])
    registry.statuses = [503] * fetches.TRIES
    await farm.start("n1")
    await farm.submit("b", [name], attempts=2)
    [sample] = await farm.samples(1)
    assert (sample.outcome, sample.attempt) == ("completed", 1)
