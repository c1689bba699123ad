"""Slurm for days, in two hours: every job of a deployment ends by its limit, again and again, and faults come beside.

`make soak-slurm`: PRORL_SOAK_MINUTES says for how long, PRORL_CHAOS_SEEDS in which order. Limits are two minutes, and
one of the supervisor, so that in two hours more jobs of each kind end than in a month with limits of a day.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.repeats import Repeats
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.errors import ProrlError
from prorl_mq.schema import rendezvous
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Outcome, Stage, Task, Verdict
from prorl_mq.service.fsck.look import judge
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import OUTAGES, RedisSettings, connect
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.lifetime import label
from slurm.supervisor import history
from tests.chaos.mixed_trainers import Trainer
from tests.slurm.real.cluster import Cluster, Site, served
from tests.slurm.real.test_failures import boxes_below
from tests.slurm.real.work import files, jobs_boxes, node_of, unfinished
from tests.support.service import assert_nothing_left, until

MINUTES = float(os.environ.get("PRORL_SOAK_MINUTES", "120"))
SEED = int(os.environ.get("PRORL_CHAOS_SEEDS", "1").split(",")[0])
NODES = ("n1", "n2", "n3", "n4")
WHOLE_S = 600.0  # within which everything serves again after a fault, on a machine that has much else to do
LOG_BYTES = 256 << 10  # of the longest log of a job
LIMITS = Limits(
    max_deaths=100, max_attempts=100, backoff_ms=50, init_ms=300_000, run_ms=600_000, eval_ms=300_000,
    total_ms=7_200_000,
)  # fmt: skip
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(MINUTES * 60 + 1_800)]


@pytest.fixture
def soaked(cluster: Cluster) -> Iterator[Site]:
    """Servers, supervisor and workers on any node."""
    shared = cluster.root.parent / "d"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    site = Site(cluster, shared)
    site.server_time, site.server_place = "2:00", ()
    site.watch_time = "1:00"
    site.scale = {"every_s": 2, "down_s": 20}
    with served(site) as site:
        try:
            yield site
        finally:
            site.prorl("cancel")


@contextlib.asynccontextmanager
async def store_at(site: Site, role: str) -> AsyncIterator[Store]:
    settings = RedisSettings(rendezvous=site.file(role))
    redis, waiting = connect(settings), connect(settings)
    try:
        yield Store(redis, Keys(), name="soak", outage_ms=180_000, waiting=waiting)
    finally:
        await redis.aclose()
        await waiting.aclose()


class CountedRepeats(Repeats):
    """What a client was given twice, which it hides from whoever uses it."""

    count = 0

    def came_again(self, run_id: str, first: str, cursor: str) -> None:
        self.count += 1
        super().came_again(run_id, first, cursor)


def batches(run: str, rng: random.Random) -> Callable[[int], BatchRequest]:
    """Short and long rollouts, in sandboxes."""

    def make(number: int) -> BatchRequest:
        groups = [
            GroupRequest(
                task=Task(
                    task_id=f"t{number}-{place}", data_source="chaos",
                    payload={"secret": "CANARY", "box": 1, "run_ms": rng.choice([200, 1_000, 5_000])},
                ),
                n=4,
            )
            for place in range(3)
        ]  # fmt: skip
        return BatchRequest(run_id=run, batch_id=f"b{number}", groups=groups, limits=LIMITS)

    return make


async def whole(_: AsyncClient, closed: ClosedGroup) -> list[str]:
    """Each sample was completed and has its reward; the last batch of all is cancelled."""
    record = closed.record
    if record.verdict is Verdict.CANCELLED:
        return []
    kept = [sample for sample in record.samples if not sample.replaced]
    good = [each for each in kept if each.outcome is Outcome.COMPLETED and each.reward == float(each.index % 2)]
    if record.verdict is Verdict.ACCEPTED and len(good) == record.n:
        return []
    return [f"{record.group_id}: {record.verdict}, {record.reason}, {[(s.outcome, s.reward, s.note) for s in kept]}"]


class Faults:
    """Deals a deck of faults again and again. Each is over when the deployment is whole again, and stands in the
    history.
    """

    def __init__(self, site: Site, store: Store, rng: random.Random) -> None:
        self.site, self.cluster, self.store, self.rng = site, site.cluster, store, rng
        self.done: Counter[str] = Counter()
        self.slowest = 0.0
        self.untold: list[str] = []
        self._deck: dict[Callable[[], Awaitable[list[str]]], int] = {
            self.task: 4, self.node: 2, self.cut: 2, self.redis: 1, self.api: 1, self.supervisor: 2, self.controller: 2,
        }  # fmt: skip

    async def deal(self) -> None:
        while True:
            cards = [card for card, times in self._deck.items() for _ in range(times)]
            self.rng.shuffle(cards)
            for card in cards:
                await asyncio.sleep(self.rng.uniform(5, 40))
                began, name = time.time(), card.__name__
                print(f"  {time.strftime('%H:%M:%S')} {name} ...", flush=True)
                expected = await card()
                await self.whole(f"after {name}")
                self.slowest = max(self.slowest, time.time() - began)
                self.done[name] += 1
                await self._told(name, expected, began)

    async def whole(self, what: str) -> None:
        """Redis, API and supervisor do their work, and workers of each stage have been there since."""
        seen: set[Stage] = set()
        with contextlib.suppress(TimeoutError):
            return await until(lambda: self._serves(seen), within_s=WHOLE_S)
        queue = await self._run("squeue", "-t", "all", "-o", "%i %j %T %r %N %M")
        told = f"{queue}\n{self.site.logs()}\n{self.cluster.said()}"
        raise AssertionError(f"not whole {WHOLE_S:g} s {what}; workers were seen of {sorted(seen)}\n{told}")

    async def _serves(self, seen: set[Stage]) -> bool:
        await asyncio.sleep(0.5)
        lock = self.site.shared / "watch" / "supervisor.json"
        try:
            seen |= {worker.stage for worker in await living(self.store) if worker.slots}
            async with httpx.AsyncClient(trust_env=False) as http:
                ready = await http.get(f"{rendezvous.read(self.site.file('trainer')).url}/readyz")
            return ready.is_success and len(seen) == len(Stage) and time.time() - lock.stat().st_mtime < 10
        except (httpx.HTTPError, OSError, ProrlError, RedisError, *OUTAGES):
            return False

    async def _told(self, name: str, expected: list[str], since: float) -> None:
        """The history has each expected text, of something that happened since."""

        async def there() -> bool:
            await asyncio.sleep(0.5)
            told = history.read(self.site.shared / "watch")
            lines = [f"{each.about}: {each.text}" for each in told if each.at >= since - 1]
            if any("takes over" in line for line in lines) and name in {"node", "cut"}:
                return True  # whoever has just taken over does not know what came and went before its first look
            return all(any(words in line for line in lines) for words in expected)

        try:
            await until(there, within_s=60)
        except TimeoutError:
            self.untold.append(f"{name} at {time.strftime('%H:%M:%S', time.localtime(since))}: {expected}")

    async def task(self) -> list[str]:
        """The batch process of a worker's task is killed."""
        running = list(await self._nodes())
        return await self._killed(self.rng.choice(running)) if running else []

    async def redis(self) -> list[str]:
        return [text for job in await self._running("redis") for text in await self._killed(job)]

    async def api(self) -> list[str]:
        return [text for job in await self._running("api") for text in await self._killed(job)]

    async def supervisor(self) -> list[str]:
        job = json.loads((self.site.shared / "watch" / "supervisor.json").read_text())["job"]
        if job:
            await self._killed(job)
        return ["watch: "] if job else []

    async def controller(self) -> list[str]:
        """Slurm answers nobody for a while."""
        await asyncio.to_thread(self.cluster.admin, "control")
        return []

    async def node(self) -> list[str]:
        return await self._lost("lose")

    async def cut(self) -> list[str]:
        return await self._lost("part")

    async def _lost(self, how: str) -> list[str]:
        """A node that workers run on is gone until Slurm knows, and a while longer."""
        used = sorted(set((await self._nodes()).values()))
        if not used:
            return []
        lost = self.rng.choice(used)
        await asyncio.to_thread(self.cluster.admin, how, lost)
        try:
            await self._until_node(lost, lambda state: state.startswith("down"))
            await asyncio.sleep(self.rng.uniform(3, 20))
        finally:
            await asyncio.to_thread(self.cluster.admin, "node", lost)
        await self._until_node(
            lost, lambda state: state in {"idle", "mixed", "allocated"} or self._resumed(lost, state)
        )
        return [f"{lost}: is down", f"{lost}: is back"]

    async def _until_node(self, node: str, fits: Callable[[str], bool]) -> None:
        async def there() -> bool:
            await asyncio.sleep(0.5)
            return fits(await asyncio.to_thread(self.cluster.node_state, node))

        await until(there, within_s=WHOLE_S)

    def _resumed(self, node: str, state: str) -> bool:
        """An operator's part: a busy controller that has asked a node twice to begin one job drains it for good."""
        if state == "drained":
            self.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return False

    async def _killed(self, job: str) -> list[str]:
        await self._run("scancel", "--signal=KILL", "--batch", job)
        return [f"{job} ("]

    async def _nodes(self) -> dict[str, str]:
        return {task: node for array in self.site.arrays for task, node in (await self._running(array)).items()}

    async def _running(self, name: str) -> dict[str, str]:
        """Running task → node. A controller that is busy, or just starts, is asked again."""
        deadline = time.monotonic() + WHOLE_S
        while True:
            try:
                return await asyncio.to_thread(self.cluster.nodes_of, self.site.job(name))
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(1)

    async def _run(self, *argv: str) -> str:
        return await asyncio.to_thread(lambda: self.cluster.run(*argv, check=False))


def sizes(site: Site) -> dict[str, int]:
    """Bytes of what grows on shared storage: of all logs, of the longest, of what the supervisor keeps, of Redis."""
    logs = [each.stat().st_size for each in files(site.shared / "logs")]
    return {
        "logs": sum(logs), "longest": max(logs), "watch": _bytes(site.shared / "watch"),
        "redis": _bytes(site.shared / "redis"), "files": len(files(site.shared)),
    }  # fmt: skip


def _bytes(directory: Path) -> int:
    total = 0
    for each in files(directory):
        with contextlib.suppress(FileNotFoundError):
            total += each.stat().st_size
    return total


async def progress(site: Site, trainers: list[Trainer], faults: Faults) -> None:
    """A line each minute."""
    began = time.monotonic()
    while True:
        closed = {trainer.run: len(trainer.closed) for trainer in trainers}
        here = await asyncio.to_thread(sizes, site)
        spent = (time.monotonic() - began) / 60
        print(f"minute {spent:.0f}: groups {closed}; faults {dict(faults.done)}; bytes {here}", flush=True)
        await asyncio.sleep(60)


async def test_a_deployment_outlives_every_limit_and_fault(soaked: Site, cluster: Cluster) -> None:
    site, rng = soaked, random.Random(SEED)
    common = {"sandbox": "bubblewrap", "slots": 4, "warn_s": 40, "time": "2:00", "options": ["--handlers chaos"]}
    site.arrays = {
        "work": {"kind": "node", "cpus": 3, "count": 2, "least": 2, "most": 3, **common},
        "score": {"kind": "eval", "count": 1, "least": 1, "most": 2, **common},
    }
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_at(site, "ingress"))
        await pools.add(store, "default:policy", "http://127.0.0.1:1")
        site.prorl("submit")
        faults = Faults(site, store, rng)
        await faults.whole("after it began")
        trainers, repeats = list[Trainer](), list[CountedRepeats]()
        for name in ("one", "two"):
            client = await stack.enter_async_context(AsyncClient(str(site.file("trainer")), patience_s=300))
            client._repeats = counted = CountedRepeats()
            repeats.append(counted)
            trainers.append(Trainer(client, name, batches(name, rng), whole))
        working = [asyncio.create_task(trainer.work(MINUTES * 60)) for trainer in trainers]
        beside = [asyncio.create_task(each) for each in (faults.deal(), progress(site, trainers, faults))]
        try:
            done, _ = await asyncio.wait([*working, *beside], timeout=MINUTES * 60, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
            beside[0].cancel()
            await asyncio.gather(beside[0], return_exceptions=True)
            await faults.whole("at the end")
            await asyncio.gather(*working)
        finally:
            for task in [*working, *beside]:
                task.cancel()
            await asyncio.gather(*working, *beside, return_exceptions=True)
        told = history.read(site.shared / "watch")
        print(account(site, trainers, faults, told), flush=True)
        assert [fault for trainer in trainers for fault in trainer.faults()] == []
        assert [each.count for each in repeats] == [0, 0], "a group that was acknowledged came again"
        assert faults.untold == [], "the history does not tell of it"
        async with store_at(site, "admin") as reader:
            report = await judge(reader, apart_s=4)
            assert report.violations == []
            await assert_nothing_left(reader)
        here = sizes(site)
        assert here["longest"] < LOG_BYTES
        assert here["watch"] < 2 * history.LIMIT_BYTES
        assert len(list((site.shared / "redis").glob("copy-*"))) <= 2
        await swept(site, faults)
    names = {site.job(name) for name in ("redis", "api", "watch", "work", "score", *site.arrays)}
    site.prorl("cancel")
    cluster.until(lambda: not names & set(cluster.run("squeue", "-h", "-o", "%j").split()), "all has ended")
    cluster.until(lambda: cluster.processes() == [], "its processes, too")
    left = [each.relative_to(site.state).parts[1] for each in files(site.state)]
    assert {each for each in left if not each.startswith("redis-")} <= {"metrics", "keepers"}
    assert len({each for each in left if each.startswith("redis-")}) <= len(NODES), "the next Redis there removes it"
    assert unfinished(site.shared) == []


async def swept(site: Site, faults: Faults) -> None:
    """The next workers of a node destroy what dead ones left there; when they have ended, no sandbox is there."""
    before, common = list(site.arrays), next(iter(site.arrays.values()))
    node = {**common, "count": 1, "least": 1, "most": 1, "time": "20:00"}
    site.arrays = {f"sweep-{name}": {**node, "sbatch": [f"--nodelist={name}"]} for name in NODES}
    site.prorl("submit")  # which the supervisor follows
    for name in before:  # which a spec that has them no longer does not name
        faults.cluster.run("scancel", "--name", site.job(name))

    async def clean() -> bool:
        await asyncio.sleep(0.5)
        lanes = {node_of(worker.name) for worker in await living(faults.store)}
        return lanes >= {*NODES} and not any(jobs_boxes(site.state / name) for name in NODES)

    await until(clean, within_s=WHOLE_S)
    await asyncio.to_thread(site.prorl, "drain", "--wait")
    assert not any(label.labelled(site.state / name) for name in NODES)
    assert boxes_below(site.state) == []


def account(site: Site, trainers: list[Trainer], faults: Faults, told: list[history.PastEvent]) -> str:
    groups = {trainer.run: len(trainer.closed) for trainer in trainers}
    jobs = {
        name: len({each.about.split()[0] for each in told if each.about.endswith(f"({name})")})
        for name in ("redis", "api", "work", "score")
    }
    takes = sum("takes over" in each.text for each in told)
    handed = sum(each.read_text().count("handed over to job") for each in (site.shared / "logs").glob("t.redis*"))
    return (
        f"groups {groups}; faults {dict(faults.done)}, the slowest over after {faults.slowest:.0f} s; jobs in the "
        f"history {jobs}; {takes} supervisors, {handed} hand-overs; {len(told)} events; bytes {sizes(site)}"
    )
