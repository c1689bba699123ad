"""Whatever becomes of jobs and of backends, the heap counts exactly the jobs that hold a backend, and ends at zero."""

import random
from collections import Counter

import pytest

from prorl_mq.duties.reap import decide
from prorl_mq.schema.items import Advance, Fail, Finish, Held, Stop
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from tests.support.queue import POOL, Queue, record, spec

pytestmark = pytest.mark.anyio
ADDRESSES = [f"http://b{number}" for number in range(4)]


class Walk:
    """Random moves of jobs in RUN and of the backends under them."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue = queue
        self.random = random.Random(seed)
        self.held: list[Held] = []
        self.groups = 0

    async def step(self) -> None:
        moves = [self.take, self.end, self.join, self.leave, self.cancel, self.reap]
        await self.random.choice([*moves, *[self.assign] * 3])()

    async def take(self) -> None:
        """New jobs arrive in RUN."""
        self.groups += 1
        await self.queue.admitted(f"g{self.groups}", batch=f"b{self.groups}", n=self.random.randint(1, 4))
        for held in await self.queue.take(Stage.INIT):
            await self.queue.store.advance([Advance(held, None, b"")])
        self.held += await self.queue.take(Stage.RUN)

    async def assign(self) -> None:
        """A call, perhaps after some backends failed it."""
        for held in self.held:
            if self.random.random() < 0.5:
                exclude = self.random.sample(ADDRESSES, self.random.choice([0, 0, 0, 1, 2]))
                await self.queue.store.assign(held, exclude=exclude, ramp_ms=self.random.choice([0, 10_000]))

    async def end(self) -> None:
        """Jobs leave RUN in each way that a worker has; some commits are sent twice."""
        for held in self._some():
            kind = self.random.choice(["advance", "release", "fail", "finish"])
            for _ in range(self.random.choice([1, 1, 2])):
                match kind:
                    case "advance":
                        await self.queue.store.advance([Advance(held, None, b"")])
                    case "release":
                        await self.queue.store.release([held])
                    case "fail":
                        await self.queue.store.fail([Fail(held, Stage.INIT, 1, "it broke")])
                    case _:
                        await self.queue.store.finish([Finish(held, Outcome.INFRA_ERROR, record(held.ref))])
        self.held += await self.queue.take(Stage.RUN)  # what was released comes again

    async def cancel(self) -> None:
        for held in self._some():
            await self.queue.store.stop(Verb.CANCEL, [Stop(held.ref, b"", self.queue.keys.stage(Stage.RUN))])
            await self.queue.store.confirm(held, record(held.ref, Outcome.CANCELLED))

    async def reap(self) -> None:
        """Their worker died; sometimes it comes back and commits all the same."""
        for held in self._some():
            await self.queue.overdue(held.ref)
            state, item = decide(await self.queue.snapshot(held.ref), spec(), leased=True)
            assert await self.queue.store.reap(Verb.REAP, state, [item]) in (["requeued"], ["ended"])
            assert await self.queue.store.assign(held) == [b"stale"]
            assert await self.queue.store.release([held]) in (["stale"], ["done"])

    async def join(self) -> None:
        await self.queue.store.join(POOL, self.random.choice(ADDRESSES), b"about", limit=self.random.choice([0, 0, 3]))

    async def leave(self) -> None:
        drain, sweep = self.random.random() < 0.5, self.random.random() < 0.3
        address = self.random.choice(ADDRESSES)
        await self.queue.store.leave(POOL, address, reason="test", drain=drain or sweep, sweep=sweep)

    def _some(self) -> list[Held]:
        picked = [held for held in self.held if self.random.random() < 0.3]
        self.held = [held for held in self.held if held not in picked]
        return picked

    async def counted(self) -> Counter[str]:
        """The heap, which must say what the jobs themselves say."""
        command, keys = self.queue.command, self.queue.keys
        heap = await command("ZRANGE", keys.pool(POOL), 0, -1, "WITHSCORES")
        scores = Counter({at.decode(): int(load) for at, load in zip(heap[::2], heap[1::2], strict=True) if int(load)})
        named = [await command("HGET", name, "backend") for name in await command("KEYS", keys.prefix + "job:*")]
        assert scores == Counter(name.decode() for name in named if name)
        return scores


@pytest.mark.parametrize("seed", range(6))
async def test_the_heap_counts_the_jobs_that_hold_a_backend(queue: Queue, seed: int) -> None:
    walk = Walk(queue, seed)
    seen = 0
    for _ in range(120):
        await walk.step()
        seen = max(seen, (await walk.counted()).total())
    assert seen > 3, "nothing was reserved: the walk shows nothing"
    walk.held += [held for ref in await _leased(queue) if (held := await queue.held_now(ref)) not in walk.held]
    for held in walk.held:
        await queue.store.finish([Finish(held, Outcome.INFRA_ERROR, record(held.ref))])
    assert await walk.counted() == Counter()
    for address in ADDRESSES:
        await queue.store.leave(POOL, address, reason="over", drain=True)
        await queue.store.leave(POOL, address, reason="over", drain=True, sweep=True)
    assert await queue.command("EXISTS", queue.keys.pool(POOL), queue.keys.pool_info(POOL)) == 0


async def _leased(queue: Queue) -> list[str]:
    refs = [name.decode().partition("job:")[2] for name in await queue.command("KEYS", queue.keys.prefix + "job:*")]
    return [ref for ref in refs if (await queue.snapshot(ref)).state == State.LEASED]  # type: ignore[arg-type]
