"""Putting jobs where a test wants them, by the verbs alone."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.asyncio import Redis

from prorl_mq.duties.settle import settlement
from prorl_mq.rules import records
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.rules.records import Group
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import EntryId, GroupRef, JobRef, RunRef, Token, batch_ref, group_ref, job_parts, public
from prorl_mq.schema.items import (
    Advance,
    Claim,
    Entry,
    Fail,
    Finish,
    GroupSpec,
    Held,
    Lease,
    NewBatch,
    NewGroup,
    Wanted,
)
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Sampling, Stage
from prorl_mq.store import groups, jobs, streams
from prorl_mq.store.jobs import Snapshot
from prorl_mq.store.layout.keys import Keys, lanes_of
from prorl_mq.store.results import Result, acknowledge, collect
from prorl_mq.store.store import Store

RUN = RunRef("acme:r")
POOL = "policy"
LEASE_MS = 60_000
BUDGET_MS = 600_000
LINGER_MS = 60_000


def spec(batch: str = "b", *, n: int = 1, max_refills: int = 0, **more: Any) -> GroupSpec:
    """A small group."""
    fields: dict[str, Any] = {
        "task_id": "task", "payload": {"question": "1 + 1"}, "sampling": Sampling(), "limits": Limits(), **more,
    }  # fmt: skip
    return GroupSpec(batch=batch, data_source="sums", n=n, max_refills=max_refills, pool=POOL, **fields)


def record(ref: JobRef, outcome: Outcome = Outcome.COMPLETED, **more: Any) -> bytes:
    """What a worker says of a job that has ended."""
    more.setdefault("reward", 1.0 if outcome is Outcome.COMPLETED else None)
    sample = SampleRecord(job_id=public(ref), index=job_parts(ref).sample, outcome=outcome, **more)
    return encode(sample)


def count_of(token: str) -> int:
    """How many tokens its epoch had given with it."""
    return int(token.rpartition(".")[2] or 0)


def lease_of(held: Held) -> Lease:
    """As a heartbeat names it."""
    return Lease(held.ref, held.token, held.entry, held.lane, held.ms, BUDGET_MS)


class Queue:
    """One worker's store on a namespace, with a few words that a test would else repeat."""

    def __init__(self, redis: "Redis", keys: Keys, name: str = "w1") -> None:
        self.redis = redis
        self.keys = keys
        self.store = Store(redis, keys, name=name, outage_ms=5_000)
        self.command: Callable[..., Awaitable[Any]] = redis.execute_command

    def worker(self, name: str) -> "Queue":
        """Another worker on the same namespace."""
        return Queue(self.redis, self.keys, name)

    async def prepare(self, *nodes: str) -> None:
        """An open epoch, the shared streams, and the lanes of some nodes."""
        await self.store.open_epoch()
        await streams.ensure(self.redis, streams.shared(self.keys))
        for node in nodes:
            await streams.ensure(self.redis, [self.keys.stage(*lane) for lane in lanes_of(node)])
            await self.command("SADD", self.keys.lanes, node)

    def new(self, group: str = "g", **about: Any) -> tuple[NewBatch, NewGroup]:
        """A batch of one group."""
        sealed = encode(about.pop("sealed", {"answer": 2}))
        told = spec(**about)
        digest = f"digest of {group} {about}"
        ref = batch_ref(RUN, told.batch)
        batch = NewBatch(RUN, ref, digest, 1, told.n, told.purpose, told.priority)
        about_it = (told.n, told.limits.total_ms, encode(told), sealed, told.data_source)
        made = NewGroup(group_ref(RUN, group), digest, *about_it)
        return batch, made

    async def submit(self, group: str = "g", **about: Any) -> GroupRef:
        batch, made = self.new(group, **about)
        [answer] = await self.store.submit(batch, [made])
        assert answer in {"stored", "already"}
        return made.ref

    async def wanted(self, ref: GroupRef) -> Wanted:
        """The group as admission sees it."""
        names = ("next", "wanted", "total_ms", "family")
        next_job, wanted, total_ms, family = await self.command("HMGET", self.keys.group(ref), *names)
        return Wanted(ref, int(next_job), int(wanted), int(total_ms), family.decode())

    async def admitted(self, group: str = "g", **about: Any) -> list[JobRef]:
        """A group's jobs, queued for INIT."""
        ref = await self.submit(group, **about)
        wanted = await self.wanted(ref)
        assert await self.store.admit(RUN, [wanted]) == [wanted.wanted]
        return [JobRef(f"{ref}:{index}") for index in range(wanted.next, wanted.next + wanted.wanted)]

    async def read(
        self, stage: Stage, node: str | None = None, count: int = 10, family: str | None = None, front: bool = False
    ) -> list[Entry]:
        stream = self.keys.stage(stage, node, family, front)
        found = await streams.read(self.redis, self.store.name, [stream], count=count, block_ms=None)
        return found.get(stream, [])

    async def claim(
        self,
        stage: Stage,
        entries: Sequence[Entry],
        node: str | None = None,
        family: str | None = None,
        front: bool = False,
    ) -> list[Claim]:
        budgets = [BUDGET_MS] * len(entries)
        return await self.store.claim(stage, node, entries, budgets, LEASE_MS, family, front=front)

    async def begin(
        self, stage: Stage, node: str | None = None, count: int = 10, family: str | None = None
    ) -> list[Held]:
        """Reads, and claims nothing."""
        return [
            Held(entry.ref, entry.claim.token, entry.entry, stage, node, POOL, family)
            for entry in await self.read(stage, node, count, family)
            if entry.claim is not None
        ]

    async def take(
        self, stage: Stage, node: str | None = None, count: int = 10, family: str | None = None, front: bool = False
    ) -> list[Held]:
        """Reads and claims."""
        entries = await self.read(stage, node, count, family, front)
        claims = await self.claim(stage, entries, node, family, front) if entries else []
        return [
            Held(entry.ref, claim.token, entry.entry, stage, node, POOL, family, front=front)
            for entry, claim in zip(entries, claims, strict=True)
            if claim.granted
        ]

    async def hold(self, stage: Stage, node: str | None = None, **about: Any) -> Held:
        """One job, leased in a stage; in RUN with a reservation, in EVAL with bytes that waited for it."""
        await self.admitted(**about)
        [held] = await self.take(Stage.INIT)
        if stage is not Stage.INIT:
            await self.store.advance([Advance(held, node, b"from init")])
            [held] = await self.take(Stage.RUN, node)
            await self.reserve(held)
        if stage is Stage.EVAL:
            blob = await self.blob(held)
            await self.store.advance([Advance(held, None, b"from run", blob, 100)])
            [held] = await self.take(Stage.EVAL)
        return held

    async def reserve(self, held: Held, address: str = "http://b1") -> None:
        """A backend of the job's own."""
        await self.store.join(POOL, address, b"about it")
        answer = await self.store.assign(held)
        assert answer[0] == b"assigned"

    async def blob(self, held: Held) -> str:
        """A stored trajectory that no commit keeps yet."""
        key = self.keys.blob(held.ref, held.token, "trajectory")
        await self.store.put(key, b"tokens", ttl_ms=60_000)
        return key

    async def finish(self, held: Held, outcome: Outcome = Outcome.COMPLETED, **more: Any) -> str:
        [answer] = await self.store.finish([Finish(held, outcome, record(held.ref, outcome, **more))])
        return answer

    async def fail(self, held: Held, stage: Stage = Stage.INIT, delay_ms: int = 60_000) -> str:
        [answer] = await self.store.fail([Fail(held, stage, delay_ms, "it broke")])
        return answer

    async def settle(self) -> list[str]:
        """Settles what is due."""
        answers = []
        for entry, fields in await self.command("XRANGE", self.keys.due, "-", "+"):
            ref = GroupRef(fields[1].decode())
            verdict = settlement(entry.decode(), ref, await self.group(ref))
            answers.append(await self.store.settle(verdict, linger_ms=LINGER_MS))
        return answers

    async def group(self, ref: GroupRef) -> Group | None:
        """An open group, read whole."""
        [stored] = await groups.read(self.store, [ref])
        return records.whole(stored)

    async def withdraw(self, *groups: GroupRef, why: Withdrawal = Withdrawal.CANCEL) -> list[int]:
        """As its only batch has it."""
        return await self.store.withdraw(RUN, dict.fromkeys(groups, batch_ref(RUN, "b")), why)

    async def results(self) -> list[Result]:
        return await collect(self.store, RUN)

    async def ack_all(self) -> int:
        return await acknowledge(self.store, RUN, [result.cursor for result in await self.results()])

    async def snapshot(self, ref: JobRef) -> Snapshot:
        [job] = await jobs.read(self.store, [ref])
        assert job is not None, f"{ref} is gone"
        return job

    async def held_now(self, ref: JobRef) -> Held:
        """The fence as the job itself has it: token and entry look right, whatever state it is in."""
        job = await self.snapshot(ref)
        _, node, family, front = self.keys.lane(job.stream)
        return Held(ref, Token(job.token), EntryId(job.entry), job.stage, node, POOL, family, front=front)

    async def overdue(self, ref: JobRef) -> None:
        """The lease's time is over."""
        assert await self.command("ZADD", self.keys.leases, "XX", "CH", 1, ref) == 1

    async def past_deadline(self, ref: JobRef) -> None:
        """The job's total deadline has passed."""
        await self.command("ZADD", self.keys.deadlines, 1, ref)
        await self.command("HSET", self.keys.job(ref), "deadline", 1)

    async def backed_off(self, ref: JobRef) -> None:
        """The back-off is over."""
        assert await self.command("ZADD", self.keys.delayed, "XX", "CH", 1, ref) == 1

    async def load(self, address: str = "http://b1") -> int:
        """Jobs in flight on a backend."""
        return int(await self.command("ZSCORE", self.keys.pool(POOL), address))
