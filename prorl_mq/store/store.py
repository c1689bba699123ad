"""The verb table: one typed method for each script.

Every verb may be sent twice; a repeat answers `already`. So each call is repeated through an outage of Redis
(`connection.patiently`) and the caller sees either an answer or `RedisUnavailable`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from prorl_mq.errors import OverQuota
from prorl_mq.rules.groups import FINAL, Withdrawal
from prorl_mq.schema import order
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef, Token, group_of, job_parts, job_ref, public, run_of
from prorl_mq.schema.items import (
    Ack,
    Advance,
    Claim,
    Entry,
    Fail,
    Finish,
    Held,
    NewBatch,
    NewGroup,
    Reap,
    Settlement,
    Stop,
    Wanted,
)
from prorl_mq.schema.lifecycle import COUNTS, FIRST, State, Verb, rules
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.connection import ask, cancellable, patiently
from prorl_mq.store.fitness import Memory
from prorl_mq.store.keys import GROUP, Keys
from prorl_mq.store.scripts import script

BATCH: Final = 64  # items in one script call
EVENTS_CAP: Final = 20_000  # entries of the event stream; one entry holds the events of one call
BATCHES_CAP: Final = 200  # newest batches that a run remembers
DAY_MS: Final = 24 * 3600 * 1000
ADMIT: Final = "admit"  # the duty that admits
PREFERENCE_BOUND: Final = 2  # jobs by which a backend that holds a group's prompt may be busier than the least busy
RAMP_MS: Final = 10_000  # how long a backend that is new, or back, is held to a growing share of the mean load
TRIAL_MS: Final = 10_000  # how long a job on trial may be silent before another one is let through
HISTORY: Final = 128  # announced versions that a pool remembers
T = TypeVar("T")


def batched(items: Iterable[T], size: int = BATCH) -> Iterable[list[T]]:
    """Slices of at most `size` items."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


class Store:
    """The verbs of one namespace, spoken by one process (`name` shows up as owner and in events)."""

    def __init__(
        self, redis: Redis, keys: Keys, *, name: str, outage_ms: int = 120_000, waiting: Redis | None = None
    ) -> None:
        self.redis = redis
        self.waiting = waiting or redis  # a client whose reads may block, on connections of their own
        self.keys = keys
        self.name = name
        self.outage_ms = outage_ms
        self.memory = Memory()

    async def call(self, verb: str, keys: list[str], arguments: Any, *raw: bytes | int) -> Any:
        """One verb by its script, repeated until it is answered."""
        return await patiently(lambda: script(verb)(self.redis, keys, arguments, *raw), outage_ms=self.outage_ms)

    async def read(self, *command: str | int | bytes) -> Any:
        """One command that changes nothing."""
        return await patiently(lambda: ask(self.redis, *command), outage_ms=self.outage_ms)

    async def wait_read(self, *command: str | float) -> Any:
        """One read that may block."""
        return await patiently(lambda: ask(self.waiting, *command), outage_ms=self.outage_ms)

    async def now_ms(self) -> int:
        """Redis's clock, which is the one that counts."""
        seconds, micros = await self.read("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def read_many(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """Several reads in one round trip."""
        if not commands:
            return []

        async def attempt() -> list[Any]:
            pipeline = self.redis.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute())

        return await patiently(lambda: cancellable(attempt), outage_ms=self.outage_ms)

    # ---- a trainer's side

    async def submit(self, batch: NewBatch, groups: Sequence[NewGroup]) -> list[str]:
        """Stores groups: `stored`, `already` or `conflict` for each; `['conflict']` if the batch's body differs;
        `['ended']` if it takes no groups any more. Without groups, one answer for the batch.

        Raises `OverQuota` when Redis has no memory left.
        """
        keys = self.keys
        bell = keys.draw_bell if batch.waits_in else keys.admit_bell
        names = [keys.batch(batch.ref), batch.waits_in or keys.backlog(batch.run), keys.runs, keys.run(batch.run), bell]
        names += (keys.open_groups(batch.run), keys.dapo, keys.batches(batch.run))
        raw, rows = _Raw(), []
        for group in groups:
            names += (keys.group(group.ref), keys.open(group.ref), keys.sealed(group.ref))
            rows.append((group.ref, group.digest, group.n, group.total_ms, raw.put(group.open), raw.put(group.sealed)))
        arguments = {
            "digest": batch.digest, "run": batch.run, "batch": batch.ref, "groups": batch.groups, "jobs": batch.jobs,
            "base": order.base(batch.purpose), "ahead_us": order.ahead_us(batch.priority), "ttl_ms": 7 * DAY_MS,
            "reserved": bool(batch.waits_in), "plan": raw.put(batch.plan), "target": batch.target,
            "batches_cap": BATCHES_CAP, "items": rows,
        }  # fmt: skip
        try:
            return _texts(await self.call("submit", names, arguments, *raw))
        except OutOfMemoryError:
            message = f"Redis is full and stored nothing of batch {public(batch.ref)!r}: acknowledge results"
            raise OverQuota(message, retry_after_ms=2000) from None

    async def admit(self, run: RunRef, groups: Sequence[Wanted]) -> list[int]:
        """Makes jobs of wanted samples. Per group: jobs made, or -1 where the group has changed meanwhile.

        While another process has the duty to admit, nothing changes: two that count by themselves could pass a quota.
        """
        keys = self.keys
        names = [keys.backlog(run), keys.stage(Stage.INIT), keys.deadlines, keys.events]
        names += (keys.in_flight, keys.unacked, keys.duty(ADMIT))
        for group in groups:
            names.append(keys.group(group.ref))
            for index in range(group.next, group.next + group.wanted):
                job = job_ref(group.ref, index)
                names.append(keys.job(job))
        arguments = {
            "state": FIRST, "stage": Stage.INIT, "run": run, "by": self.name, "events_cap": EVENTS_CAP, "items": groups,
        }  # fmt: skip
        return list(await self.call("admit", names, arguments))

    async def ack(self, run: RunRef, items: Sequence[Ack]) -> list[str]:
        """Deletes acknowledged results with all that belongs to them: `acked` or `already`."""
        keys = self.keys
        names = [keys.results(run), keys.run(run)]
        for item in items:
            names += (keys.group(item.ref), keys.batch(BatchRef(item.batch)), *item.blobs)
        names.append(keys.unacked)
        rows = [(item.cursor, item.ref, len(item.blobs), item.bytes, int(item.admitted)) for item in items]
        return _texts(await self.call("ack", names, {"run": run, "items": rows}))

    async def configure(self, run: RunRef, settings: bytes) -> None:
        """Stores a run's settings in place of those it had; a run that is not known yet is from now on."""
        keys = self.keys
        names = [keys.run_settings, keys.runs, keys.run(run)]
        await self.call("configure", names, {"run": run, "ttl_ms": 7 * DAY_MS}, settings)

    async def withdraw(self, run: RunRef, groups: Mapping[GroupRef, BatchRef], why: Withdrawal) -> list[int]:
        """Takes groups from where they wait, for good. Per group: how many jobs it has had, or -1 if it is closed.

        `groups`: each with its batch. The first final reason stays.
        """
        keys = self.keys
        names = [keys.backlog(run), keys.reservoir(run), keys.due]
        for group, batch in groups.items():
            names += (keys.group(group), keys.reservoir(batch))
        over = {soft: True for soft in Withdrawal if soft not in FINAL and why in FINAL}
        return list(await self.call("withdraw", names, {"why": why, "over": over, "items": list(groups)}))

    async def stop(self, verb: Verb, jobs: Sequence[Stop]) -> list[str]:
        """Cancels or expires jobs: `ended`, `stopping`, `already`, `gone`, or `moved` (look again)."""
        keys = self.keys
        ending = Outcome.CANCELLED if verb is Verb.CANCEL else Outcome.EXPIRED
        names = [keys.events, keys.deadlines, keys.delayed, keys.due, keys.cancels, keys.eval_bytes]
        raw = _Raw()
        rows: list[tuple[Any, ...]] = []
        for job in jobs:
            names += (keys.job(job.ref), keys.group(group_of(job.ref)), job.stream)
            rows.append((job.ref, job_parts(job.ref).sample, raw.put(job.record), *((1,) if job.deadline else ())))
        names += (keys.in_flight, keys.counters)
        arguments = {
            "rules": rules(verb), "done": State.DONE, "consumers": GROUP, "ending": ending, "verb": verb,
            "by": self.name, "events_cap": EVENTS_CAP, "items": rows,
        }  # fmt: skip
        return _texts(await self.call("stop", names, arguments, *raw))

    # ---- a worker's side

    async def claim(
        self, stage: Stage, node: str | None, entries: Sequence[Entry], budgets: Sequence[int], lease_ms: int
    ) -> list[Claim]:
        """A token and a lease for each entry just read. `budgets`: how long each stage may last, in ms."""
        keys = self.keys
        names = [keys.stage(stage, node), keys.leases, keys.events]
        names += (keys.job(entry.ref) for entry in entries)
        rows = [(e.ref, e.entry, lease_ms, budget) for e, budget in zip(entries, budgets, strict=True)]
        arguments = {**self._head(Verb.CLAIM), "stage": stage, "items": rows}
        return [_claim(row) for row in await self.call("claim", names, arguments)]

    async def advance(self, items: Sequence[Advance]) -> list[str]:
        """Puts jobs of one stage and stream on the next stage: `advanced`, or the fence's refusal."""
        keys, first = self.keys, items[0].held
        after = Stage.RUN if first.stage is Stage.INIT else Stage.EVAL
        names = [keys.stage(first.stage, first.node), keys.leases, keys.events, keys.eval_bytes]
        raw, rows = _Raw(), []
        for item in items:
            held = item.held
            names += (keys.job(held.ref), keys.stage(after, item.node), keys.pool(held.pool))
            names += (item.trajectory,) if item.trajectory else ()
            carry, detail = raw.put(item.carry), _one_line(item.detail)
            rows.append((held.ref, held.token, held.entry, carry, item.trajectory, item.eval_bytes, detail))
        arguments = {**self._head(Verb.ADVANCE), "stage": first.stage, "next": after, "items": rows}
        return _texts(await self.call("advance", names, arguments, *raw))

    async def release(self, items: Sequence[Held]) -> list[str]:
        """Gives jobs of one stage and stream back untouched: `released`, or the fence's refusal."""
        keys, first = self.keys, items[0]
        names = [keys.stage(first.stage, first.node), keys.leases, keys.events]
        for held in items:
            names += (keys.job(held.ref), keys.pool(held.pool))
        rows = [(held.ref, held.token, held.entry) for held in items]
        arguments = {**self._head(Verb.RELEASE), "stage": first.stage, "items": rows}
        return _texts(await self.call("release", names, arguments))

    async def fail(self, items: Sequence[Fail]) -> list[str]:
        """Puts failed attempts of one stage and stream aside: `delayed`, or the fence's refusal."""
        keys, first = self.keys, items[0].held
        names = [keys.stage(first.stage, first.node), keys.leases, keys.events, keys.delayed]
        rows = []
        for item in items:
            held = item.held
            again = keys.stage(item.stage)
            names += (keys.job(held.ref), keys.pool(held.pool), again)
            rows.append(
                (held.ref, held.token, held.entry, item.stage, item.delay_ms, _one_line(item.detail), int(item.counts))
            )
        arguments = {**self._head(Verb.FAIL), "items": rows}
        return _texts(await self.call("fail", names, arguments))

    async def finish(self, items: Sequence[Finish]) -> list[str]:
        """Ends jobs of one stage and stream: `finished`, or the fence's refusal."""
        keys, first = self.keys, items[0].held
        names = [keys.stage(first.stage, first.node), keys.leases, keys.events]
        names += (keys.deadlines, keys.due, keys.eval_bytes)
        raw, rows = _Raw(), []
        for item in items:
            held = item.held
            names += (keys.job(held.ref), keys.pool(held.pool), keys.group(group_of(held.ref)))
            index, due_at = job_parts(held.ref).sample, item.due_at if item.outcome in COUNTS else 0
            rows.append((held.ref, held.token, held.entry, index, raw.put(item.record), item.outcome, due_at))
        names += (keys.in_flight, keys.counters)
        arguments = {**self._head(Verb.FINISH), "stage": first.stage, "items": rows}
        return _texts(await self.call("finish", names, arguments, *raw))

    async def confirm(self, held: Held, record: bytes, detail: str = "") -> str:
        """Ends a job that was told to stop, after everything it ran is dead: `confirmed`, or a refusal."""
        keys = self.keys
        names = [keys.leases, keys.events, keys.deadlines, keys.due, keys.eval_bytes, keys.job(held.ref)]
        names += (keys.pool(held.pool), keys.group(group_of(held.ref)), keys.stage(held.stage, held.node))
        names += (keys.in_flight, keys.counters)
        raw = _Raw()
        row = (held.ref, held.token, held.entry, job_parts(held.ref).sample, raw.put(record), _one_line(detail))
        arguments = {**self._head(Verb.CONFIRM), "stage": held.stage, "items": [row]}
        return _texts(await self.call("confirm", names, arguments, *raw))[0]

    async def assign(
        self,
        held: Held,
        *,
        exclude: Sequence[str] = (),
        bound: int = PREFERENCE_BOUND,
        ramp_ms: int = RAMP_MS,
        floor: int | None = None,
        labels_are_old: bool = False,
    ) -> list[bytes]:
        """Reserves a backend: `[b'assigned' | b'already', address, description]`, `[b'stale']` or `[b'none']`.

        `floor`: a backend that tells an older version gets no job; `labels_are_old`: nor one that tells no number.
        """
        keys = self.keys
        names = [keys.pool(held.pool), keys.pool_info(held.pool), keys.job(held.ref), keys.group(group_of(held.ref))]
        names.append(keys.events)
        arguments = {
            **self._head(Verb.ASSIGN), "ref": held.ref, "stage": held.stage, "token": held.token,
            "exclude": list(exclude), "bound": bound, "ramp_ms": ramp_ms, "trial_ms": TRIAL_MS,
            "floor": -1 if floor is None else floor, "labels_are_old": labels_are_old,
        }  # fmt: skip
        return list(await self.call("assign", names, arguments))

    async def put(self, key: str, data: bytes, *, ttl_ms: int) -> None:
        """Writes a blob that dies by its TTL unless a commit keeps it."""
        await self.call("put", [key], None, ttl_ms, data)

    # ---- maintenance

    async def reap(self, verb: Verb, to: State, items: Sequence[Reap]) -> list[str]:
        """Takes jobs back whose worker or lane is gone: `requeued`, `ended`, `held`, `stale` or `gone`."""
        keys = self.keys
        names = [keys.leases, keys.events, keys.deadlines, keys.due, keys.eval_bytes]
        raw, rows = _Raw(), []
        for item in items:
            shared = keys.stage(item.stage)
            names += (keys.job(item.ref), keys.pool(item.pool), keys.group(group_of(item.ref)), item.stream)
            # A job that goes on with its stage stays on its lane: its sandbox lives on that node.
            names.append(item.stream if item.stream.startswith(f"{shared}@") else shared)
            index = job_parts(item.ref).sample
            rows.append(
                (
                    item.ref,
                    item.token,
                    item.entry,
                    item.stage,
                    index,
                    raw.put(item.record),
                    item.outcome,
                    item.leased,
                    item.deaths,
                )
            )
        names += (keys.in_flight, keys.counters)
        arguments = {
            "rules": rules(verb, to=to) if verb is Verb.REAP else rules(verb), "done": State.DONE, "consumers": GROUP,
            "verb": verb, "by": self.name, "events_cap": EVENTS_CAP, "items": rows,
        }  # fmt: skip
        return _texts(await self.call("reap", names, arguments, *raw))

    async def promote(self, jobs: Sequence[tuple[JobRef, str]]) -> list[str]:
        """Requeues delayed jobs, each with the stream it goes on with: `promoted`, `early`, `stale` or `gone`."""
        keys = self.keys
        names = [keys.delayed, keys.events]
        for ref, stream in jobs:
            names += (keys.job(ref), stream)
        arguments = {
            "rules": rules(Verb.PROMOTE), "by": self.name, "events_cap": EVENTS_CAP, "items": [ref for ref, _ in jobs],
        }  # fmt: skip
        return _texts(await self.call("promote", names, arguments))

    async def settle(self, verdict: Settlement, *, linger_ms: int) -> str:
        """Applies a verdict once: `refilled`, `parked`, the record's id, or `already`; `withdrawn` and `moved` say that
        it was made of what is not so any more (decide again).
        """
        keys, run = self.keys, run_of(verdict.ref)
        names = [keys.due, keys.group(verdict.ref), keys.batch(BatchRef(verdict.batch)), keys.run(run)]
        names += (keys.backlog(run), keys.admit_bell, keys.results(run))
        names += (keys.open(verdict.ref), keys.sealed(verdict.ref), keys.open_groups(run))
        if verdict.seen is not None:
            names += (keys.drawn(BatchRef(verdict.batch)), keys.carried(run), keys.carrying, keys.draw_bell)
        for index in range(verdict.jobs if not verdict.wanted and not verdict.park else 0):
            names.append(keys.job(job_ref(verdict.ref, index)))
        names.append(keys.counters)
        arguments = {
            "entry": verdict.entry, "ref": verdict.ref, "wanted": verdict.wanted, "verdict": verdict.verdict,
            "bytes": verdict.bytes, "linger_ms": linger_ms, "ttl_ms": 7 * DAY_MS, "park": verdict.park,
            "counts": verdict.counts, "seen": verdict.seen and verdict.seen._asdict(),
            "tally": [part for pair in verdict.tally for part in pair],
        }  # fmt: skip
        return _text(await self.call("settle", names, arguments, verdict.record))

    async def hold(self, duty: str, *, lease_ms: int) -> str:
        """Takes or renews the lease on a maintenance duty: `held` or `taken`."""
        return _text(await self.call("hold", [self.keys.duty(duty)], {"name": self.name, "lease_ms": lease_ms}))

    async def forget(self, worker: str, streams: Sequence[str]) -> str:
        """Removes a dead worker's names: `forgotten`, `alive` or `pending`."""
        names = [self.keys.workers, self.keys.worker(worker), *streams]
        return _text(await self.call("forget", names, {"name": worker, "consumers": GROUP}))

    async def retire_lane(self, node: str) -> str:
        """Removes the lane of a node that is gone: `retired`, or `in use` when a job has come meanwhile."""
        names = [self.keys.lanes, self.keys.stage(Stage.RUN, node)]
        return _text(await self.call("retire_lane", names, {"node": node}))

    # ---- backends

    async def join(self, pool: str, address: str, about: bytes, *, limit: int = 0) -> str:
        """Adds a backend to a pool: `joined` or `known`. `limit`: jobs in flight at most, 0 for any number."""
        names = [self.keys.pool(pool), self.keys.pool_info(pool), self.keys.pools]
        return _text(await self.call("join", names, {"pool": pool, "address": address, "limit": limit}, about))

    async def leave(self, pool: str, address: str, *, reason: str, drain: bool, sweep: bool = False) -> str:
        """Takes a backend out, with `drain` once no job holds it: `left`, `draining`, `unknown`, or `kept`.

        `sweep` touches none but one that is draining, or has left and was still held.
        """
        names = [self.keys.pool(pool), self.keys.pool_info(pool)]
        arguments = {"address": address, "reason": reason, "drain": drain, "sweep": sweep}
        return _text(await self.call("leave", names, arguments))

    async def observe(
        self,
        pool: str,
        address: str,
        *,
        was: str,
        breaker: str,
        restart: bool = False,
        facts: Mapping[str, str] | None = None,
    ) -> list[bytes]:
        """Writes down what was seen of a backend: `[b'observed']`, `[b'changed', breaker]` or `[b'gone']`."""
        arguments = {
            "address": address, "was": was, "breaker": breaker, "restart": restart,
            "facts": list((facts or {}).items()),
        }  # fmt: skip
        return list(await self.call("observe", [self.keys.pool_info(pool)], arguments))

    async def announce(self, pool: str, version: int, mode: str, weights: str) -> str:
        """Records the policy version of a pool: `announced` or `already`."""
        arguments = {"version": str(version), "mode": mode, "weights": weights, "history": HISTORY}
        names = [self.keys.policy(pool), self.keys.policy_update(pool)]
        return _text(await self.call("announce", names, arguments))

    async def progress(self, pool: str, announcement: str, address: str, about: bytes) -> str:
        """Notes how far a backend is with announced weights: `noted` or `stale`."""
        names = [self.keys.policy(pool), self.keys.policy_update(pool)]
        return _text(await self.call("progress", names, {"id": announcement, "address": address}, about))

    def _head(self, verb: Verb) -> dict[str, Any]:
        return {"rules": rules(verb), "consumers": GROUP, "worker": self.name, "events_cap": EVENTS_CAP}


class Renewal(NamedTuple):
    """A heartbeat as its script takes it; a worker sends it from a thread and a connection of its own."""

    keys: list[str]
    arguments: dict[str, Any]


def renewal(
    keys: Keys, name: str, about: Mapping[str, str | int], items: Sequence[tuple[JobRef, Token]], *, lease_ms: int
) -> Renewal:
    """`renew` for the jobs that a worker holds. It answers for each: `held`, `lost`, or how it must end."""
    names = [keys.leases, keys.workers, keys.worker(name), *(keys.job(ref) for ref, _ in items)]
    arguments = {
        "rules": rules(Verb.RENEW), "name": name, "alive_ms": lease_ms,
        "about": [part for pair in about.items() for part in pair],
        "items": [(ref, token, lease_ms) for ref, token in items],
    }  # fmt: skip
    return Renewal(names, arguments)


class _Raw(list[bytes]):
    """Bytes beside the packed argument: the argument holds their places in ARGV."""

    def put(self, data: bytes) -> int:
        if not data:
            return 0
        self.append(data)
        return len(self) + 1


def _one_line(detail: str) -> str:
    """Fit for a time line, whose fields end at tabs and whose events end at line ends."""
    return " ".join(detail.split())[:200]


def _text(reply: bytes) -> str:
    return reply.decode()


def _texts(reply: Iterable[bytes]) -> list[str]:
    return [each.decode() for each in reply]


def _claim(row: Sequence[Any]) -> Claim:
    status = row[0].decode()
    if len(row) == 1:
        return Claim(status)
    return Claim(status, Token(row[1].decode()), row[2], row[3], row[4], row[5], row[6], row[7].decode())
