"""Time from the death of a RUN worker to its rollout's next request: with a keeper that sees it, and by its lease.

Walks in a sandbox, one at a time, on a node with two RUN workers: the one that has it is killed at a random moment,
and started again before the next walk. The request comes behind the attach to the sandbox and a run over the log.
"""

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage, events
from prorl_mq.service import submit
from prorl_mq.service.cancel import cancel
from prorl_mq.store import jobs
from prorl_mq.store.jobs import Snapshot
from prorl_mq.store.store import Store
from sandbox.keeper import place
from sandbox.keeper.wire import counts
from tests.support.service import store_of
from tests.support.walk import Walker, started, walks
from tests.support.world import World

LEASE_MS = 15_000  # the default
LATENCY_MS = 200
SLOTS = 2
WITHIN_S = 120.0


class Kills:
    """Walks whose workers are killed."""

    def __init__(self, world: World, store: Store, walker: Walker) -> None:
        self.world, self.store, self.walker = world, store, walker
        self.place = place.place(world.directory / "state", world.namespace, "n0")
        self.ref = JobRef("")

    async def warm(self, name: str) -> None:
        """Both workers have loaded what the first rollout of a process loads."""
        backend = self.walker.backend
        await backend.pause()
        await submit.accept(self.store, "default", walks(name, 2 * SLOTS, 1))
        await backend.wait_running(2 * SLOTS)
        backend.resume()
        for number in range(2 * SLOTS):
            self.ref = JobRef(f"default:chaos:{name}-{number}:0")
            await self.job(lambda job: job.state == State.DONE)

    async def begin(self, name: str) -> None:
        self.ref = JobRef(f"default:chaos:{name}-0:0")
        await submit.accept(self.store, "default", walks(name, 1, 400))

    async def end(self) -> None:
        await cancel(self.store, "job", self.ref)
        await self.job(lambda job: job.state == State.DONE)

    async def kill(self, rng: random.Random) -> tuple[float, float, float]:
        """Milliseconds to the reaping, to the read of the next worker, and to its request."""
        job = await self.job(lambda job: job.stage is Stage.RUN and job.state == State.LEASED and job.logged > 0)
        logged = job.logged
        await self.job(lambda job: job.logged > logged + 4)
        await asyncio.sleep(rng.uniform(0.0, LATENCY_MS / 1000))
        pids = {str(process.pid): name for name, process in self.world.workers.items()}
        name = pids[job.owner.rpartition("-")[2]]
        killed, killed_ms = time.perf_counter(), time.time() * 1000
        self.world.kill(name)
        after = await self.job(lambda now: now.state == State.LEASED and now.owner not in {"", job.owner})
        reaped = [each.ms for each in events("job", await jobs.timeline(self.store, self.ref)) if each.event == "reap"]

        async def asked() -> bool:
            return bool(self.later(killed + (after.claimed_ms - killed_ms) / 1000 - 0.002))

        await reached(asked)
        first = self.later(killed + (after.claimed_ms - killed_ms) / 1000 - 0.002)[0]
        self.world.restart(name)
        return reaped[-1] - killed_ms, after.claimed_ms - killed_ms, (first - killed) * 1000

    def later(self, moment: float) -> list[float]:
        return [each.started for each in self.walker.backend.requests if each.started > moment]

    async def job(self, so: Callable[[Snapshot], bool]) -> Snapshot:
        found: list[Snapshot] = []

        async def there() -> bool:
            [job] = await jobs.read(self.store, [self.ref])
            found[:] = [job] if job else []
            return job is not None and so(job)

        await reached(there)
        return found[0]

    async def ready(self, *, watched: bool) -> None:
        """Two RUN workers live, and the keeper sees them where there is one."""

        async def alive() -> bool:
            pids = {str(self.world.workers[name].pid) for name in ("run-0", "run-1")}
            names = await self.store.read("ZRANGEBYSCORE", self.store.keys.workers, await self.store.now_ms(), "+inf")
            return pids <= {name.decode().rpartition("-")[2] for name in names}

        async def seen() -> bool:
            with contextlib.suppress(OSError):
                return (await counts(self.place)).watched == 2
            return False

        await reached(alive)
        if watched:
            await reached(seen)


async def reached(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await true():
            await asyncio.sleep(0.005)


async def handover(kind: str, kills: int, ways: Sequence[str] = ("watched", "leased")) -> None:
    """Prints a row for each way."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="pq") as directory:
        world = World(Path(directory), sandbox=kind, handlers="walk", lease_ms=LEASE_MS)
        try:
            async with store_of(world) as store, (walker := Walker(0.0)).backend:
                walker.backend.latency_ms = LATENCY_MS
                await started(world, store, walker, slots=SLOTS)
                made = Kills(world, store, walker)
                print(f"{'deaths':12} {'reaped, ms':>22} {'read again, ms':>22} {'next request, ms':>22}")
                for name in ways:
                    if name == "watched":
                        world.start_keeper()
                    else:
                        world.kill("keeper-0")
                    rows = []
                    for number in range(kills):
                        await made.ready(watched=name == "watched")
                        await made.warm(f"warm-{name}{number}")
                        await made.begin(f"{name}{number}")
                        rows.append(await made.kill(rng))
                        await made.end()
                    told = [
                        f"{statistics.median(each):.0f}, at most {max(each):.0f}" for each in zip(*rows, strict=True)
                    ]
                    print(f"{kills} {name:9} {' '.join(f'{each:>22}' for each in told)}", flush=True)
        finally:
            world.stop()
