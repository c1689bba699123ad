"""A worker's death is noticed at once by its keeper; without a keeper, or only stopped, a worker keeps its leases."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.service import submit
from prorl_mq.store import jobs
from prorl_mq.store.jobs import Snapshot
from prorl_mq.store.store import Store
from sandbox.keeper import place
from sandbox.keeper.wire import counts
from tests.support.service import acknowledge_all, gather, store_of, until
from tests.support.walk import Walker, started, trajectories, walks
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(400)]
STEPS, STEP_S, SLOTS = 8, 0.1, 2
LONG_MS = 3_600_000  # a lease that ends no test


class Node:
    """A node with two RUN workers of two slots each, and a keeper."""

    def __init__(self, world: World, store: Store, walker: Walker) -> None:
        self.world, self.store, self.walker = world, store, walker
        self.place = place.place(world.directory / "state", world.namespace, "n0")

    async def watched(self, number: int) -> None:
        async def so() -> bool:
            with contextlib.suppress(OSError):
                return (await counts(self.place)).watched == number
            return False

        await until(so, within_s=60)

    async def walking(self, batch: str) -> dict[str, list[Snapshot]]:
        """Four walks with logged turns, two of each worker's; by their worker. The backend answers none of them."""
        backend = self.walker.backend
        backend.requests.clear()
        await backend.pause()
        await submit.accept(self.store, "default", walks(batch, 2 * SLOTS, STEPS))
        async with asyncio.timeout(100):
            await backend.wait_running(2 * SLOTS)
            self.walker.asked.clear()
            backend.resume()
            await backend.wait_until(lambda _: sum(step > 0 for step in self.walker.asked.values()) == 2 * SLOTS)
        await backend.pause()
        held: dict[str, list[Snapshot]] = {}
        for job in await self.read(batch):
            assert (job.state, job.stage, job.logged >= 1) == (State.LEASED, Stage.RUN, True)
            held.setdefault(self.worker(job.owner), []).append(job)
        assert {name: len(each) for name, each in held.items()} == {"run-0": SLOTS, "run-1": SLOTS}
        return held

    async def read(self, batch: str) -> list[Snapshot]:
        refs = [JobRef(f"default:chaos:{batch}-{number}:0") for number in range(2 * SLOTS)]
        return [job for job in await jobs.read(self.store, refs) if job]

    def worker(self, owner: str) -> str:
        pids = {str(process.pid): name for name, process in self.world.workers.items()}
        return pids.get(owner.rpartition("-")[2], "")

    async def deaths(self) -> int:
        return int(await self.store.read("HGET", self.store.keys.counters, "reclaims:reap") or 0)

    async def finished(self, count: int) -> None:
        records = await gather(self.store, None, count, within_s=120)
        assert len(await trajectories(self.store, records)) == count

    async def only_held_by(self, name: str, before: Sequence[Snapshot], batch: str) -> None:
        """The walks of the other worker have ended; these are where they were."""
        await self.finished(SLOTS)
        left = [job for job in await self.read(batch) if job.state != State.DONE]
        assert sorted(job.ref for job in left) == sorted(job.ref for job in before)
        assert {(job.state, self.worker(job.owner) or name, job.token) for job in left} == {
            (State.LEASED, name, job.token) for job in before
        }


async def test_a_killed_worker_is_noticed_at_once_and_a_stopped_one_keeps_its_jobs(world: World) -> None:
    world.sandbox, world.handlers = "bubblewrap", "walk"
    world.env["PRORL_LEASE_MS"] = str(LONG_MS)
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=SLOTS)
        world.start_keeper()
        node = Node(world, store, walker)
        await node.watched(2)

        held = await node.walking("stopped")
        world.freeze("run-0")
        walker.backend.resume()
        await node.only_held_by("run-0", held["run-0"], "stopped")
        world.thaw("run-0")
        await node.finished(2 * SLOTS)
        assert await node.deaths() == 0
        await acknowledge_all(store)

        await node.walking("killed")
        world.kill("run-0")
        walker.backend.resume()
        await node.finished(2 * SLOTS)
        assert await node.deaths() == SLOTS
        await acknowledge_all(store)

        # The control: nobody has seen the process end.
        world.restart("run-0")
        await node.watched(2)
        world.kill("keeper-0")
        held = await node.walking("unseen")
        dead = [job.owner for job in held["run-0"]]
        world.kill("run-0")
        walker.backend.resume()
        await node.only_held_by("run-0", held["run-0"], "unseen")
        assert [job.owner for job in await node.read("unseen") if job.state != State.DONE] == dead
        assert await node.deaths() == SLOTS


@pytest.mark.parametrize("redis_too", [False, True])
async def test_a_keeper_that_dies_with_the_worker_leaves_its_jobs_to_their_leases(
    world: World, *, redis_too: bool
) -> None:
    """Also where Redis ends in the same moment: no step is taken twice, and no death is counted twice."""
    world.sandbox, world.handlers = "bubblewrap", "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=SLOTS)
        world.start_keeper()
        node = Node(world, store, walker)
        await node.watched(2)
        await node.walking("both")
        world.workers["keeper-0"].kill()
        world.kill("run-1")
        if redis_too:
            world.kill_redis()
            world.start_redis()
        walker.backend.resume()
        world.restart("keeper-0")
        await node.finished(2 * SLOTS)
        assert await node.deaths() == SLOTS
        await node.watched(1)
