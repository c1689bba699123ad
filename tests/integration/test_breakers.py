"""An image or a task family that is broken stops burning attempts, the others continue, and it heals by itself."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.duties.running import running
from prorl_mq.rules import node_guard
from prorl_mq.rules.breaker import CLOSED, SHARED
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import RunRef, group_ref, job_ref, run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Stage, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import inspect, overview, submit
from prorl_mq.store import breakers, gauges, results
from prorl_mq.store.breakers import BreakerKey, Shared
from prorl_mq.store.server.connection import RedisSettings
from sandbox.errors import SandboxStartFailed
from sandbox.fake import FakeProvider, FakeSandbox
from sandbox.protocol import SandboxSpec
from tests.integration.test_families import Installed, no_policy
from tests.support.queue import Queue
from tests.worker.conftest import queue
from tests.worker.stage import made, until
from workers.handler import Prepared, Ran, Score
from workers.node import starts
from workers.node.starts import WatchedProvider
from workers.postponed import SharedBreakers
from workers.process.worker import Worker
from workers.settings import WorkerSettings
from workers.stages import guarded
from workers.stages.eval import EvalStage
from workers.stages.guarded import GuardedStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.stage import StageRunner
from workers.stages.work import Move

__all__ = ["queue"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

RUN = run_ref("default", "breakers")
GROUPS, N = 10, 4
OTHERS = run_ref("other", "breakers")  # of another tenant
FAMILY, IMAGE = "lib", "image"  # what is broken
EVAL_BYTES = 100_000  # may wait for EVAL


class World:
    """What is broken: names of images, of nodes, of images on one node, and of families' scorers."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.export: Any = 1  # what RUN hands to EVAL in the family `FAMILY`
        self.starts: Counter[tuple[str, str | None]] = Counter()  # by node and image


class Boxed(Installed):
    """A family whose INIT needs a sandbox of the row's image, and whose EVAL needs a library of the family's name."""

    schema = Schema(open_ended=True)

    def __init__(self, source: str, world: World) -> None:
        super().__init__(source)
        self._world = world

    async def init(self, context: Any) -> Prepared:
        await context.sandbox(context.job.payload["image"])
        await context.close()
        return Prepared()

    async def run(self, context: Any) -> Ran:
        return Ran(trajectory=None, export=self._world.export if context.job.data_source == FAMILY else 1)

    async def eval(self, context: Any) -> Score:
        if context.job.data_source in self._world.broken:
            raise RuntimeError("no module named 'scorer'")
        return Score(reward=1.0)


class Places(FakeProvider):
    """Sandboxes of a node: none starts of an image that is broken (there), and none at all on a broken node."""

    def __init__(self, node: str, world: World) -> None:
        super().__init__(node=node)
        self._world = world

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        self._world.starts[self.node, spec.image] += 1
        if {spec.image, self.node, f"{self.node}/{spec.image}"} & self._world.broken:
            raise SandboxStartFailed(f"no sandbox for it: {spec.image} cannot be pulled")
        return await super().create(spec)


class Farm:
    """Workers of all three stages in this process, as `prorl-worker` wires them."""

    def __init__(self, settings: RedisSettings, stack: contextlib.AsyncExitStack, queue: Queue) -> None:
        self._settings = settings
        self._stack = stack
        self.store = queue.store
        self.world = World()
        self.workers: dict[str, Worker] = {}
        self.records: list[GroupRecord] = []

    async def start(self, *nodes: str, slots: int = 16, lease_ms: int = 3_000) -> None:
        for node in nodes:
            for stage in Stage:
                await self._one(node, stage, slots, lease_ms)

        async def alive() -> bool:
            return int(await self.store.read("ZCARD", self.store.keys.workers)) == 3 * len(nodes)

        await until(alive)

    async def _one(self, node: str, stage: Stage, slots: int, lease_ms: int) -> None:
        settings = WorkerSettings(
            stage=stage, redis=self._settings, slots=slots, node=node, name=f"{stage}-{node}", sandbox="none",
            lease_ms=lease_ms, grace_ms=5_000, eval_bytes_limit=EVAL_BYTES,
        )  # fmt: skip
        registry = Registry([Boxed("fine", self.world), Boxed(FAMILY, self.world)])
        worker = self.workers[settings.name] = await self._stack.enter_async_context(made(settings, registry))
        guarded_stage = GuardedStage(self._stage(worker), stage, worker.store, worker.shared, node)
        task = asyncio.create_task(worker.run(guarded_stage))

        async def drain() -> None:
            worker.drain()
            await task

        self._stack.push_async_callback(drain)

    def _stage(self, worker: Worker) -> StageRunner:
        stage, node = worker.settings.stage, worker.settings.node
        provider = WatchedProvider(Places(node, self.world), worker.shared, worker.node)
        if stage is Stage.INIT:
            return InitStage(worker.registry, provider, worker.store, node)
        if stage is Stage.RUN:
            return RunStage(worker.registry, provider, worker.store, no_policy, node)
        return EvalStage(worker.registry, provider, worker.store)

    async def submit(
        self, batch: str, source: str, image: str, groups: int = GROUPS, attempts: int = 1, tenant: str = "default"
    ) -> None:
        tasks = [Task(task_id=f"{place}", data_source=source, payload={"image": image}) for place in range(groups)]
        limits = Limits(max_attempts=attempts, backoff_ms=10)
        asked = [GroupRequest(task=task, n=N) for task in tasks]
        request = BatchRequest(run_id="breakers", batch_id=batch, groups=asked, limits=limits)
        await submit.accept(self.store, tenant, request)

    async def outcomes(self, groups: int, run: RunRef = RUN) -> Counter[str]:
        """How the jobs of so many more groups ended."""
        found = list[GroupRecord]()
        give_up = monotonic() + 90
        while len(found) < groups and monotonic() < give_up:
            for result in await results.collect(self.store, run, after="0", wait_ms=50):
                found.append(decode(result.record, GroupRecord))
                await results.acknowledge(self.store, run, [result.cursor])
        self.records += found
        return Counter(sample.outcome.value for each in found for sample in each.samples)

    async def burnt(self) -> int:
        """Jobs that ended by a failure of ours."""
        return int(await self.store.read("HGET", self.store.keys.counters, "jobs:infra_error") or 0)

    async def open(self, key: BreakerKey) -> bool:
        seen = (await breakers.look(self.store)).get(key)
        return seen is not None and seen.open

    async def quiet(self) -> bool:
        """Nobody holds a job: all that are left wait."""
        now = await gauges.read(self.store)
        return now.delayed > 0 and now.leased == 0 and not any(each.load.queued for each in now.stages)


@pytest.fixture
async def farm(settings: RedisSettings, queue: Queue) -> AsyncIterator[Farm]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(settings, name="api", lease_ms=3_000))
        yield Farm(settings, stack, queue)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials follow each other within a second."""
    monkeypatch.setattr(breakers, "SHARED", SHARED._replace(back_off_ms=200, longest_ms=800))


def broken(what: str) -> tuple[BreakerKey, str, str]:
    """The breaker, the family and the image of the batch that fails."""
    if what == FAMILY:
        return breakers.family("default", Stage.EVAL, FAMILY), FAMILY, "good"
    return breakers.image("bad"), "fine", "bad"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("what", [FAMILY, IMAGE])
async def test_what_is_broken_burns_at_most_twenty_jobs_and_heals_when_it_is_repaired(farm: Farm, what: str) -> None:
    key, source, image = broken(what)
    farm.world.broken = {FAMILY, "bad"}
    await farm.start("n1", "n2")
    await farm.submit("bad", source, image)
    await until(lambda: farm.open(key))
    await farm.submit("good", "fine", "good")
    assert await farm.outcomes(GROUPS) == {"completed": GROUPS * N}  # the others continue
    await until(farm.quiet)
    assert await farm.burnt() <= 20
    said = f"waits: {key.said} failed "
    error = "RuntimeError: no module named 'scorer'" if what == FAMILY else "SandboxStartFailed: no sandbox for it"

    async def explained() -> bool:
        """A job that is put aside says why; one that a trial has just brought back says where it is."""
        why = [(await inspect.job_status(farm.store, ref)).why for ref in await waiting(farm)]
        return any(each.startswith("waits: ") and error in each and "next try in " in each for each in why)

    await until(explained)
    assert any(line.startswith(said) and "'scorer'" not in line for line in (await overview.read(farm.store)).waits)
    farm.world.broken.clear()
    ended = await farm.outcomes(GROUPS)
    assert (ended["completed"], ended.keys() - {"infra_error"}) == (GROUPS * N, {"completed"})
    assert await farm.burnt() <= 20
    assert await breakers.look(farm.store) == {}


async def waiting(farm: Farm) -> list[Any]:
    """The jobs that are put aside."""
    return [ref.decode() for ref in await farm.store.read("ZRANGE", farm.store.keys.delayed, 0, -1)]


@pytest.mark.parametrize("what", [FAMILY, IMAGE])
async def test_without_breakers_every_refill_is_burnt(farm: Farm, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""

    async def none(_shared: SharedBreakers, key: BreakerKey, error: BaseException) -> Shared:
        return Shared(key, CLOSED, str(error), 0, 0)

    monkeypatch.setattr(SharedBreakers, "failed", none)
    _, source, image = broken(what)
    farm.world.broken = {FAMILY, "bad"}
    await farm.start("n1")
    await farm.submit("bad", source, image)
    assert await farm.outcomes(GROUPS) == {"infra_error": 2 * GROUPS * N}


async def test_groups_of_a_family_that_fails_stay_in_the_backlog_where_no_deadline_runs(farm: Farm) -> None:
    farm.world.broken = {FAMILY}
    await farm.start("n1")
    await farm.submit("bad", FAMILY, "good")
    await until(lambda: farm.open(breakers.family("default", Stage.EVAL, FAMILY)))

    number = 0

    async def stays() -> bool:
        """Admission looks twice a second: the first group after the opening may still go."""
        nonlocal number
        number += 1
        await farm.submit(f"late-{number}", FAMILY, "good", groups=1)
        await farm.submit(f"good-{number}", "fine", "good", groups=1)
        assert await farm.outcomes(1) == {"completed": N}  # the others continue
        status = await inspect.job_status(farm.store, job_ref(group_ref(RUN, f"late-{number}-0"), 0))
        return status.state == "backlog" and "waits: family lib in eval failed " in status.why

    await until(stays)


async def test_a_node_on_which_nothing_starts_takes_no_jobs_says_so_and_is_tried_again(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_guard, "BACK_OFF_S", 1.0)
    farm.world.broken = {"n1"}
    await farm.start("n1", "n2", slots=4)
    for number in range(4):
        await farm.submit(f"b{number}", "fine", f"image-{number}", groups=2, attempts=3)
    guard = farm.workers["init-n1"].node
    await until(lambda: guard.shut)
    assert await farm.outcomes(8) == {"completed": 8 * N}
    assert "node n1 starts no sandbox: SandboxStartFailed" in farm.workers["init-n1"].waits.text
    farm.world.broken.clear()
    more = 0
    while guard.shut and more < 40:  # its trial is a job: there must be some
        await farm.submit(f"more-{more}", "fine", "image-0", groups=2)
        await farm.outcomes(2)
        more += 1
    assert (guard.shut, farm.workers["init-n1"].waits.text) == (False, "")


async def large_exports_to_a_broken_scorer(farm: Farm) -> None:
    farm.world.broken, farm.world.export = {FAMILY}, b"x" * 20_000
    await farm.start("n1")
    await farm.submit("bad", FAMILY, "good", groups=20)
    await until(lambda: farm.open(breakers.family("default", Stage.EVAL, FAMILY)))


async def waiting_bytes(farm: Farm) -> int:
    return int(await farm.store.read("GET", farm.store.keys.eval_bytes) or 0)


async def test_what_waits_for_one_tenants_broken_scorer_does_not_stop_the_others(farm: Farm) -> None:
    await large_exports_to_a_broken_scorer(farm)
    await farm.submit("good", "fine", "good", groups=3, tenant="other")
    assert await farm.outcomes(3, OTHERS) == {"completed": 3 * N}
    await until(farm.quiet)
    assert await waiting_bytes(farm) == 0
    farm.world.broken.clear()


async def test_counted_as_waiting_it_would_stop_them(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""

    async def counted(_stage: GuardedStage, move: Move) -> Move:
        return move

    monkeypatch.setattr(GuardedStage, "_uncounted", counted)
    monkeypatch.setattr(GuardedStage, "_later", lambda *_: None)
    await large_exports_to_a_broken_scorer(farm)

    async def full() -> bool:
        return await waiting_bytes(farm) > EVAL_BYTES and await farm.open(
            breakers.family("default", Stage.EVAL, FAMILY)
        )

    await until(full)


async def bad_images(farm: Farm) -> None:
    """Rows of one tenant, each of an image that does not start."""
    farm.world.broken = {f"bad-{number}" for number in range(12)}
    await farm.start("n1", slots=4)
    for image in sorted(farm.world.broken):
        await farm.submit(image, "fine", image, groups=1, attempts=3)


async def test_images_of_one_tenant_that_do_not_start_shut_no_node(farm: Farm) -> None:
    await bad_images(farm)
    await until(lambda: farm.world.starts["n1", None] > 0)  # the base image was tried
    await farm.submit("good", "fine", "good", groups=3, tenant="other")
    assert await farm.outcomes(3, OTHERS) == {"completed": 3 * N}
    assert not farm.workers["init-n1"].node.shut
    farm.world.broken.clear()


async def test_without_the_base_image_they_would_shut_it(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""

    async def fails(*_: object) -> Exception:
        return SandboxStartFailed("the images do not start")

    monkeypatch.setattr(starts, "_canary", fails)
    await bad_images(farm)
    await until(lambda: farm.workers["init-n1"].node.shut)


@pytest.mark.parametrize("guarding", [True, False])
async def test_an_attempt_that_failed_with_its_sandbox_is_repeated_on_another_node(
    farm: Farm, guarding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image that does not start on one node: the control, where nodes decline nothing, fails some jobs there.

    Elsewhere a node declines as often as it takes, and leases are long: on a busy machine the other one may be slow.
    """
    monkeypatch.setattr(guarded, "DECLINES", 1_000 if guarding else 0)
    farm.world.broken = {"n1/good"}
    await farm.start("n1", "n2", slots=2, lease_ms=30_000)
    ended = await some_jobs(farm, "b")
    while not guarding and not twice_failed(farm):  # chance has led every second attempt to the other node
        await some_jobs(farm, f"b{len(farm.records)}")
    failed = [attempt for record in farm.records for sample in record.samples for attempt in sample.failed]
    assert {(attempt.stage, attempt.cause, attempt.node) for attempt in failed} == {("init", "sandbox", "n1")}
    if guarding:
        assert ended == {"completed": 32}


async def some_jobs(farm: Farm, batch: str) -> Counter[str]:
    await farm.submit(batch, "fine", "good", groups=8, attempts=2)
    return await farm.outcomes(8)


def twice_failed(farm: Farm) -> bool:
    """A sample's two attempts failed."""
    samples = [sample for record in farm.records for sample in record.samples]
    return any(len(sample.failed) == 1 and sample.outcome == "infra_error" for sample in samples)
