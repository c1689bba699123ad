"""The verbs of jobs: one typed method for each script, and `renewal` for the heartbeat. Each may be sent twice."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from prorl_mq.rules.breaker import LONGEST_SHUT_MS
from prorl_mq.schema.codec import sendable
from prorl_mq.schema.ids import JobRef, Token, group_of, job_parts
from prorl_mq.schema.items import Advance, Claim, Entry, Fail, Finish, Held, Lane, Lease, Logged, Reap, Stop
from prorl_mq.schema.lifecycle import State, Verb, rules
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.turns import TURN
from prorl_mq.store.core import EVENTS_CAP, Core, Raw, texts
from prorl_mq.store.layout.keys import GROUP, Keys
from prorl_mq.store.payloads.name import named_file

PREFERENCE_BOUND: Final = 2  # jobs by which a backend that holds a group's prompt may be busier than the least busy
RAMP_MS: Final = 10_000  # how long a backend that is new, or back, is held to a growing share of the mean load
STOP_LEASE_MS: Final = 30_000  # of a job that was told to stop before it was claimed, until its worker's next beat
STOP_MS: Final = 600_000  # how long that may take to end
TRIAL_MS: Final = 10_000  # how long a job on trial may be silent before another one is let through


class JobVerbs(Core):
    """Verbs of a job after its admission: a worker's, and those of the duties that end or requeue it."""

    async def claim(
        self,
        stage: Stage,
        node: str | None,
        entries: Sequence[Entry],
        budgets: Sequence[int],
        lease_ms: int,
        family: str | None = None,
        held_ms: Sequence[int] = (),
        *,
        front: bool = False,
    ) -> list[Claim]:
        """A lease for each entry that this worker has read. `budgets`: how long each stage may last, in ms."""
        keys = self.keys
        names = [keys.stage(stage, node, family, front), keys.leases, keys.events]
        names += (keys.job(entry.ref) for entry in entries)
        waited = held_ms or [0] * len(entries)
        rows = [
            (each.ref, each.entry, each.claim.token if each.claim else "", ms, lease_ms, budget)
            for each, budget, ms in zip(entries, budgets, waited, strict=True)
        ]
        arguments = {**self._head(Verb.CLAIM), "items": rows}
        return [_claim(row) for row in await self.call("claim", names, arguments)]

    async def divert(self, lane: Lane, entries: Sequence[Entry], families: Sequence[str]) -> list[str]:
        """Moves entries just read from a stream to the lanes of their task families, which their reader lacks:
        `diverted`, `already`, `stale` or `gone`.
        """
        keys = self.keys
        names, lanes = [*keys.parking, keys.stage(*lane), keys.events], list[str]()
        for entry, family in zip(entries, families, strict=True):
            lanes.append(keys.stage(*lane._replace(family=family)))
            names += (keys.job(entry.ref), lanes[-1])
        names.append(keys.family_lanes)
        rows = [(entry.ref, entry.entry) for entry in entries]
        head = self._head(Verb.DIVERT)
        arguments = {**head, "stage": lane.stage, "lanes": self.lane_names(lanes), "items": rows}
        return texts(await self.call("divert", names, arguments))

    async def advance(self, items: Sequence[Advance]) -> list[str]:
        """Puts jobs of one stage and stream on the next stage: `advanced`, or the fence's refusal."""
        keys, first = self.keys, items[0].held
        after = Stage.RUN if first.stage is Stage.INIT else Stage.EVAL
        names = [*keys.parking, keys.stage(*first.lane), keys.leases, keys.events, keys.eval_bytes]
        raw, rows, streams = Raw(), [], list[str]()
        for item in items:
            held = item.held
            streams.append(self.stream_for(Lane(after, item.node, item.family)))
            names += (keys.job(held.ref), streams[-1], keys.stage(*Lane(after, item.node).ahead), keys.pool(held.pool))
            if item.trajectory:  # one in a file has no blob: of the key that it would have, there is nothing to keep
                in_file = named_file(item.trajectory) is not None
                names.append(keys.blob(held.ref, held.token, "trajectory") if in_file else item.trajectory)
            carry, detail = raw.put(item.carry), _one_line(item.detail)
            told = (raw.put(held.told),) if held.told and after is Stage.RUN else ()
            facts = (item.trajectory, item.eval_bytes, detail, item.exported, *told)
            rows.append((held.ref, held.token, held.entry, held.ms, carry, *facts))
        names.append(keys.family_lanes)
        lanes = self.lane_names(streams)
        arguments = {**self._head(Verb.ADVANCE), "stage": first.stage, "next": after, "lanes": lanes, "items": rows}
        arguments["forgets"] = first.stage is Stage.RUN
        return texts(await self.call("advance", names, arguments, *raw))

    async def release(self, items: Sequence[Held]) -> list[str]:
        """Gives jobs of one stage and stream back untouched: `released`, or the fence's refusal."""
        keys, first = self.keys, items[0]
        names = [*keys.parking, keys.stage(*first.lane), keys.leases, keys.events]
        for held in items:
            names += (keys.job(held.ref), keys.pool(held.pool), *_places(keys, held.lane))
        rows = [(held.ref, held.token, held.entry, held.ms) for held in items]
        arguments = {**self._head(Verb.RELEASE), "stage": first.stage, "items": rows}
        return texts(await self.call("release", names, arguments))

    async def fail(self, items: Sequence[Fail]) -> list[str]:
        """Puts failed attempts of one stage and stream aside: `delayed`, or the fence's refusal."""
        keys, first = self.keys, items[0].held
        names = [*keys.parking, keys.stage(*first.lane), keys.leases, keys.events, keys.delayed, keys.eval_bytes]
        raw = Raw()
        rows: list[tuple[Any, ...]] = []
        for item in items:
            held, detail, counts = item.held, _one_line(item.detail), int(item.counts)
            names += (keys.job(held.ref), keys.pool(held.pool), *_places(keys, Lane(item.stage)))
            carry = (raw.put(item.carry), 1)[: 1 + item.aside] if item.carry or item.aside else ()
            rows.append((*held[:3], held.ms, item.stage, item.delay_ms, detail, counts, item.forgets, *carry))
        arguments = {**self._head(Verb.FAIL), "items": rows}
        return texts(await self.call("fail", names, arguments, *raw))

    async def finish(self, items: Sequence[Finish]) -> list[str]:
        """Ends jobs of one stage and stream: `finished`, or the fence's refusal."""
        keys, first = self.keys, items[0].held
        names = [keys.stage(*first.lane), keys.leases, keys.events]
        names += (keys.deadlines, keys.due, keys.eval_bytes)
        raw, rows = Raw(), []
        for item in items:
            held = item.held
            names += (keys.job(held.ref), keys.pool(held.pool), keys.group(group_of(held.ref)))
            index = job_parts(held.ref).sample
            rows.append((held.ref, held.token, held.entry, held.ms, index, raw.put(item.record), item.outcome))
        names += (keys.in_flight, keys.counters)
        arguments = {**self._head(Verb.FINISH), "stage": first.stage, "items": rows}
        return texts(await self.call("finish", names, arguments, *raw))

    async def confirm(self, held: Held, record: bytes, detail: str = "") -> str:
        """Ends a job that was told to stop, after everything it ran is dead: `confirmed`, or a refusal."""
        keys = self.keys
        names = [keys.leases, keys.events, keys.deadlines, keys.due, keys.eval_bytes, keys.job(held.ref)]
        names += (keys.pool(held.pool), keys.group(group_of(held.ref)), keys.stage(*held.lane))
        names += (keys.in_flight, keys.counters)
        raw = Raw()
        row = (held.ref, held.token, held.entry, job_parts(held.ref).sample, raw.put(record), _one_line(detail))
        arguments = {**self._head(Verb.CONFIRM), "stage": held.stage, "items": [row]}
        return texts(await self.call("confirm", names, arguments, *raw))[0]

    async def log(self, items: Sequence[Logged]) -> list[str]:
        """Appends records to jobs' logs of turns: `logged`, `already`, `dropped` or `stale`; or the place of the first
        record that Redis lacks.
        """
        keys, raw, rows = self.keys, Raw(), []
        names = [keys.events, *(keys.job(item.held.ref) for item in items)]
        for item in items:
            place = -1 if item.data is None else item.place
            data, saved = raw.put(item.data or b""), raw.put(item.saved)
            rows.append((item.held.ref, item.held.token, place, data, saved, _one_line(item.detail), item.saved_in))
        arguments = {**self._head(Verb.LOG), "stage": items[0].held.stage, "turn": TURN.decode(), "items": rows}
        return texts(await self.call("log", names, arguments, *raw))

    async def assign(
        self,
        held: Held,
        *,
        exclude: Sequence[str] = (),
        bound: int = PREFERENCE_BOUND,
        ramp_ms: int = RAMP_MS,
        floor: int | None = None,
        labels_are_old: bool = False,
        to: str = "",
    ) -> list[bytes]:
        """Reserves a backend: `[b'assigned' | b'already', address, description]`, `[b'stale']` or `[b'none']`.

        `floor`: a backend that tells an older version gets no job; `labels_are_old`: nor one that tells no number.
        `to`: the backend that it is to move to; where that may not be, it keeps its own.
        """
        keys = self.keys
        names = [keys.pool(held.pool), keys.pool_info(held.pool), keys.job(held.ref), keys.group(group_of(held.ref))]
        names.append(keys.events)
        arguments = {
            **self._head(Verb.ASSIGN), "ref": held.ref, "stage": held.stage, "token": held.token,
            "exclude": list(exclude), "bound": bound, "ramp_ms": ramp_ms, "trial_ms": TRIAL_MS,
            "longest_ms": LONGEST_SHUT_MS, "floor": "" if floor is None else str(floor),
            "labels_are_old": labels_are_old, "to": to,
        }  # fmt: skip
        return list(await self.call("assign", names, arguments))

    async def put(self, key: str, data: bytes, *, ttl_ms: int) -> None:
        """Writes a blob that dies by its TTL unless a commit keeps it."""
        await self.call("put", [key], None, ttl_ms, data)

    async def stop(self, verb: Verb, jobs: Sequence[Stop]) -> list[str]:
        """Cancels or expires jobs: `ended`, `stopping`, `already`, `gone`, or `moved` (look again)."""
        keys = self.keys
        ending = Outcome.CANCELLED if verb is Verb.CANCEL else Outcome.EXPIRED
        names = [
            keys.events,
            keys.deadlines,
            keys.delayed,
            keys.due,
            keys.cancels,
            keys.eval_bytes,
            keys.leases,
            keys.paused,
        ]
        raw = Raw()
        rows: list[tuple[Any, ...]] = []
        for job in jobs:
            names += (keys.job(job.ref), keys.group(group_of(job.ref)), job.stream)
            rows.append((job.ref, job_parts(job.ref).sample, raw.put(job.record), *((1,) if job.deadline else ())))
        names += (keys.in_flight, keys.counters)
        arguments = {
            "rules": rules(verb) | rules(verb, to=State.DONE), "done": State.DONE, "stopping": State.STOPPING,
            "consumers": GROUP, "ending": ending, "verb": verb, "by": self.name, "events_cap": EVENTS_CAP,
            "lease_ms": STOP_LEASE_MS, "stop_ms": STOP_MS, "items": rows,
        }  # fmt: skip
        return texts(await self.call("stop", names, arguments, *raw))

    async def reap(self, verb: Verb, to: State, items: Sequence[Reap]) -> list[str]:
        """Takes jobs back whose worker or lane is gone: `requeued`, `ended`, `held`, `stale` or `gone`."""
        keys = self.keys
        names = [*keys.parking, keys.leases, keys.events, keys.deadlines, keys.due, keys.eval_bytes]
        raw, rows = Raw(), []
        for item in items:
            names += (keys.job(item.ref), keys.pool(item.pool), keys.group(group_of(item.ref)), item.stream)
            # A job that continues with its stage stays on its node: its sandbox lives there.
            stays = item.stream.startswith(keys.stage(item.stage))
            names += _places(keys, keys.lane(item.stream) if stays else Lane(item.stage))
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
                    item.unread,
                    item.deaths,
                )
            )
        names += (keys.in_flight, keys.counters)
        arguments = {
            "rules": rules(verb, to=to) if verb is Verb.REAP else rules(verb), "done": State.DONE, "consumers": GROUP,
            "parks": rules(verb, to=State.PAUSED),
            "verb": verb, "by": self.name, "events_cap": EVENTS_CAP, "items": rows,
        }  # fmt: skip
        return texts(await self.call("reap", names, arguments, *raw))

    async def promote(self, jobs: Sequence[tuple[JobRef, str | None]]) -> list[str]:
        """Requeues delayed jobs, each with its stream, None where the job is gone: `promoted`, `early`, `stale` or
        `gone`.
        """
        keys = self.keys
        names = [keys.delayed, keys.events]
        for ref, stream in jobs:
            names += (keys.job(ref), stream or keys.due)
        arguments = {
            "rules": rules(Verb.PROMOTE), "by": self.name, "events_cap": EVENTS_CAP, "items": [ref for ref, _ in jobs],
        }  # fmt: skip
        return texts(await self.call("promote", names, arguments))

    def _head(self, verb: Verb) -> dict[str, Any]:
        parks = rules(verb, to=State.PAUSED)
        return {
            "rules": rules(verb), "parks": parks, "consumers": GROUP, "worker": self.name, "events_cap": EVENTS_CAP,
        }  # fmt: skip


class Renewal(NamedTuple):
    """A heartbeat as its script takes it; a worker sends it from a thread and a connection of its own."""

    keys: list[str]
    arguments: dict[str, Any]


def renewal(keys: Keys, name: str, about: Mapping[str, str | int], items: Sequence[Lease], *, lease_ms: int) -> Renewal:
    """`renew` for the jobs that a worker has. It answers for each: `held`, `unleased`, `lost`, `pause`, or
    how it must end.
    """
    names = [keys.leases, keys.workers, keys.worker(name), keys.events]
    for each in items:
        names += (keys.job(each.ref), keys.stage(*each.lane))
    arguments = {
        "rules": rules(Verb.RENEW), "claims": rules(Verb.CLAIM), "consumers": GROUP, "worker": name,
        "alive_ms": lease_ms, "events_cap": EVENTS_CAP, "pauses": True,
        "about": [part for pair in about.items() for part in pair],
        "items": [(each.ref, each.token, each.entry, each.held_ms, lease_ms, each.budget_ms) for each in items],
    }  # fmt: skip
    return Renewal(names, arguments)


def _places(keys: Keys, lane: Lane) -> tuple[str, str]:
    """The stream for a job that has not begun, and that for one with a log of turns."""
    return keys.stage(*lane._replace(front=False)), keys.stage(*lane.ahead)


def _one_line(detail: str) -> str:
    """Fit for a time line, whose fields end at tabs and whose events end at line ends."""
    return sendable(" ".join(detail.split()))[:200]


def _claim(row: Sequence[Any]) -> Claim:
    status = row[0].decode()
    if len(row) == 1:
        return Claim(status)
    return Claim(status, Token(row[1].decode()), row[2], row[3], row[4], row[5], row[6], row[7].decode())
