"""The real queue under virtual workers: every verb, script, verdict and draw is the service's own, only time is not.

The two duties of dynamic sampling are turned by hand until nothing is left for them to do. Admission takes the whole
backlog at once: it is a matter of slots, and these are virtual.
"""

from collections.abc import Sequence

from redis.asyncio import Redis

from bench.dapo.fleet import Job
from bench.dapo.workload import Workload
from prorl_mq.duties.draw import Replenishing
from prorl_mq.duties.settle import Settling
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.dapo import Dapo
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, Token, batch_ref, group_ref, job_parts, public
from prorl_mq.schema.items import Advance, Finish, Held, Wanted
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Outcome, SampleRecord, Stage, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import submit
from prorl_mq.store import batches, results, streams, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import ask
from prorl_mq.store.store import Store

RUN = RunRef("default:bench")
LONG_MS = 24 * 3600 * 1000
SLICE = 1_000  # prompts in one request


class RealQueue:
    """A run on an empty namespace. The same prompts, in the same order, as a `Simulation` of the same workload."""

    def __init__(self, redis: Redis, keys: Keys, work: Workload) -> None:
        self.work = work
        self.is_open = False
        self._keys = keys
        self._store = Store(redis, keys, name="virtual", outage_ms=5_000)
        self._settling = Settling(self._store, linger_ms=60_000)
        self._replenishing = Replenishing(self._store)
        self._held: dict[JobRef, Held] = {}
        self._batches = 0
        self._told_until = "0"

    async def prepare(self, prompts: Sequence[int]) -> None:
        """Fills the run's reservoir."""
        await streams.ensure(self._store.redis, streams.shared(self._keys))
        await work.enroll(self._store, {"virtual": Schema()}, None)
        for number, start in enumerate(range(0, len(prompts), SLICE)):
            groups = self._groups(prompts[start : start + SLICE])
            await self._submit(BatchRequest(run_id="bench", batch_id=f"prompts{number}", groups=groups, prompts=True))

    async def open(self, dapo: Dapo) -> None:
        """The run's next batch, with prompts from the run's reservoir."""
        self._batches += 1
        await self._submit(BatchRequest(run_id="bench", batch_id=f"b{self._batches}", dapo=dapo))
        self.is_open = True
        await self._calm()

    async def take(self, stage: Stage, free: int) -> Sequence[Job]:
        store, stream = self._store, self._keys.stage(stage)
        found = await streams.read(store.redis, store.name, [stream], count=free, block_ms=None)
        entries = found.get(stream, [])
        if not entries:
            return []
        claims = await store.claim(stage, None, entries, [LONG_MS] * len(entries), LONG_MS)
        assert all(claim.granted for claim in claims), claims
        for entry, claim in zip(entries, claims, strict=True):
            self._held[entry.ref] = Held(entry.ref, claim.token, entry.entry, stage, None, "policy")
        return [_job(entry.ref) for entry in entries]

    async def done(self, job: Job, stage: Stage) -> Sequence[Job]:
        ref = JobRef(f"{_group(job.group)}:{job.sample}")
        held = self._held.pop(ref)
        if stage is not Stage.EVAL:
            assert await self._store.advance([Advance(held, None, b"")]) == ["advanced"]
            return []
        record = _record(ref, Outcome.COMPLETED, self.work.reward(*job))
        assert await self._store.finish([Finish(held, Outcome.COMPLETED, record)]) == ["finished"]
        return await self._calm()

    async def accepted(self) -> list[list[int]]:
        """Groups that each batch accepted so far, in the order of their records."""
        found = await results.collect(self._store, RUN, limit=100_000)
        lists: list[list[int]] = [[] for _ in range(self._batches)]
        for each in found:
            if not each.of_batch and (record := decode(each.record, GroupRecord)).verdict == "accepted":
                lists[int(record.batch_id[1:]) - 1].append(int(record.group_id[1:]))
        return lists

    async def _submit(self, request: BatchRequest) -> None:
        await submit.accept(self._store, "default", request)

    def _groups(self, prompts: Sequence[int]) -> list[GroupRequest]:
        task = Task(task_id="virtual", data_source="virtual")
        return [GroupRequest(task=task, n=self.work.n, group_id=f"p{each}") for each in prompts]

    async def _calm(self) -> list[Job]:
        """Verdicts, draws and admission until nothing is left of them; which running jobs were stopped."""
        store, keys, stopped = self._store, self._keys, list[Job]()
        looks = [("XLEN", keys.due), ("ZCARD", keys.draw_bell), ("ZRANGE", keys.backlog(RUN), 0, -1)]
        while True:
            due, rung, backlog = await store.read_many(looks)
            if backlog:
                await self._admit([GroupRef(ref.decode()) for ref in backlog])
            if due:
                await self._settling.turn()
            if rung:
                await ask(store.redis, "DEL", keys.draw_bell)
                await self._replenishing.look_around()
            stopped += await self._obey()
            if not (due or rung or backlog):
                break
        if self._batches:
            ref = batch_ref(RUN, f"b{self._batches}")
            self.is_open = batches.is_open((await batches.look(store, [ref]))[ref])
        return stopped

    async def _admit(self, groups: Sequence[GroupRef]) -> None:
        fields = [("HMGET", self._keys.group(ref), "next", "wanted", "total_ms") for ref in groups]
        rows = await self._store.read_many(fields)
        wanted = [
            Wanted(ref, int(first), int(count), int(total_ms))
            for ref, (first, count, total_ms) in zip(groups, rows, strict=True)
        ]
        await self._store.admit(RUN, wanted)

    async def _obey(self) -> list[Job]:
        """Follows the cancel stream as a worker does."""
        stopped = []
        for entry, fields in await self._store.read("XRANGE", self._keys.cancels, f"({self._told_until}", "+"):
            self._told_until = entry.decode()
            ref, token, ending, _owner = fields[1].decode().split(" ")
            held = self._held.get(JobRef(ref))
            if held is not None and held.token == Token(token):
                await self._store.confirm(self._held.pop(held.ref), _record(held.ref, Outcome(ending)))
                stopped.append(_job(held.ref))
        return stopped


def _group(number: int) -> GroupRef:
    return group_ref(RUN, f"p{number}")


def _job(ref: JobRef) -> Job:
    parts = job_parts(ref)
    return Job(int(parts.group[1:]), parts.sample)


def _record(ref: JobRef, outcome: Outcome, reward: float | None = None) -> bytes:
    sample = SampleRecord(job_id=public(ref), index=job_parts(ref).sample, outcome=outcome, reward=reward)
    return encode(sample)
