"""A closed loop of jobs over backends: always as many under way, each of lognormal length, every answer checked."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, batch_ref, group_ref
from prorl_mq.schema.items import Finish, GroupSpec, Held, NewBatch, NewGroup, Wanted
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Sampling, Stage
from prorl_mq.store.store import Store
from prorl_mq.store.streams import ensure, read, shared
from prorl_mq.testing.sampling import made_up_logprobs
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.protocol import Completion
from workers.inference.request import BackendClient, GenerateRequest
from workers.stages.backends import Pools
from workers.stages.work import Work

RUN = RunRef("bench:balance")
POOL = "bench:policy"
SAMPLE_S = 0.02
LEASE_MS = 600_000
N = 8  # samples of a group: they share a prompt
PROMPT_TOKENS = 512
SIGMA = 1.0  # of the logarithm of a job's tokens


class Queues(NamedTuple):
    """Calls under way on each backend at one moment."""

    at_s: float
    by_backend: dict[str, int]

    @property
    def worst(self) -> float:
        """The fullest backend's over the mean of all."""
        mean = sum(self.by_backend.values()) / max(1, len(self.by_backend))
        return max(self.by_backend.values()) / mean if mean else 0.0


class Counting:
    """Counts calls under way, from the side of those who call."""

    def __init__(self, clients: BackendClient) -> None:
        self.running: Counter[str] = Counter()
        self._clients = clients

    async def generate(self, backend, request: GenerateRequest) -> Completion:
        self.running[backend.address] += 1
        try:
            return await self._clients.generate(backend, request)
        finally:
            self.running[backend.address] -= 1


class Job(NamedTuple):
    """Its policy, and what is done when it has ended."""

    name: str
    policy: StickyPolicy
    end: Callable[[], Awaitable[None]]


class Bounded(Store):
    """With another bound of the preference for backends that have served a group; -1: without it."""

    bound: int

    async def assign(self, held: Held, **more: Any) -> list[bytes]:
        return await super().assign(held, **{**more, "bound": self.bound})


class Ours:
    """Jobs as RUN has them: leased in Redis, assigned by the heap, finished once."""

    def __init__(self, store: Store, clients: InferenceClients) -> None:
        self.store = store
        self.pools = Pools(store, clients)
        self.lost = 0
        self._ready: list[Held] = []
        self._groups = 0
        self._spec = GroupSpec(
            batch="b", task_id="t", data_source="bench", payload={}, n=N, max_refills=0, sampling=Sampling(),
            limits=Limits(), pool=POOL,
        )  # fmt: skip

    async def prepare(self) -> None:
        await ensure(self.store.redis, shared(self.store.keys))

    async def hold(self) -> Held:
        """The next job, leased."""
        if not self._ready:
            await self._more()
        return self._ready.pop(0)

    async def next(self, counting: Counting) -> Job:
        held = await self.hold()
        work = Work(held=held, claim=None, spec=self._spec)  # type: ignore[arg-type]
        policy = self.pools.policy(work)
        policy._clients = counting  # noqa: SLF001 - the same calls, counted

        async def end() -> None:
            record = encode(SampleRecord(job_id="j", index=0, outcome=Outcome.INFRA_ERROR))
            self.lost += await self.store.finish([Finish(held, Outcome.INFRA_ERROR, record)]) != ["finished"]

        return Job(held.ref, policy, end)

    async def left(self) -> int:
        """Reservations that were not given back."""
        heap = await self.store.read("ZRANGE", self.store.keys.pool(POOL), 0, -1, "WITHSCORES")
        return sum(int(load) for load in heap[1::2])

    async def _more(self) -> None:
        """One more group, read and claimed as a worker would."""
        self._groups += 1
        ref: GroupRef = group_ref(RUN, f"g{self._groups}")
        body = encode(self._spec)
        batch = NewBatch(RUN, batch_ref(RUN, f"b{self._groups}"), "d", 1, N)
        await self.store.submit(batch, [NewGroup(ref, "d", N, LEASE_MS, body, b"")])
        await self.store.admit(RUN, [Wanted(ref, 0, N, LEASE_MS)])
        stream = self.store.keys.stage(Stage.INIT)
        entries = (await read(self.store.redis, self.store.name, [stream], count=N, block_ms=None))[stream]
        claims = await self.store.claim(Stage.INIT, None, entries, [LEASE_MS] * N, LEASE_MS)
        self._ready = [
            Held(JobRef(entry.ref), claim.token, entry.entry, Stage.INIT, None, POOL)
            for entry, claim in zip(entries, claims, strict=True)
        ]


class Loop:
    """`at_once` jobs under way until `jobs` have ended. Their lengths are the same for every rule."""

    def __init__(self, next_job: Callable[[], Awaitable[Job]], counting: Counting, *, mean_tokens: int) -> None:
        self._next_job = next_job
        self._counting = counting
        self._mean_tokens = mean_tokens
        self._random = random.Random(11)
        self.backends: Sequence[str] = ()  # those that queues are counted of
        self.samples: list[Queues] = []
        self.done = self.failed = 0
        self.changed = asyncio.Event()

    async def run(self, jobs: int, at_once: int) -> None:
        """Queues are sampled while the load is whole: from the time that the first jobs have made way for others,
        until the last one has begun.
        """
        slots = asyncio.Semaphore(at_once)
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample(at_once))
            for number in range(jobs):
                await slots.acquire()
                tokens = self._length()
                group.create_task(self._job(number, tokens)).add_done_callback(lambda _task: slots.release())
            sampling.cancel()

    def _length(self) -> int:
        """Lognormal, with this mean."""
        drawn = self._random.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) * self._mean_tokens
        return max(1, min(int(drawn), 16 * self._mean_tokens))

    async def _job(self, number: int, tokens: int) -> None:
        job = await self._next_job()
        group = number // N
        prompt = [(group * 7919 + place * 104729) % 50021 for place in range(PROMPT_TOKENS)]
        answer = await job.policy.generate(prompt, max_tokens=tokens, temperature=1.0, seed=number)
        self.failed += list(answer.logprobs) != made_up_logprobs(answer.ids) or len(answer.ids) != tokens
        await job.end()
        self.done += 1
        self.changed.set()

    async def _sample(self, at_once: int) -> None:
        await self.until_done(at_once)
        while True:
            running = {address: self._counting.running[address] for address in self.backends}
            self.samples.append(Queues(time.monotonic(), running))
            await asyncio.sleep(SAMPLE_S)

    async def until_done(self, count: int) -> None:
        while self.done < count:
            self.changed.clear()
            await self.changed.wait()
