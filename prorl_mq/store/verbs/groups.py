"""The verbs of groups, their batches and runs: one typed method for each script. Each may be sent twice."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from redis.exceptions import OutOfMemoryError

from prorl_mq.errors import OverQuota
from prorl_mq.rules import order
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.schema.dapo import Phase
from prorl_mq.schema.ids import BatchRef, GroupRef, RunRef, job_ref, public, run_of
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.schema.items import Ack, NewBatch, NewGroup, Settlement, Wanted
from prorl_mq.schema.lifecycle import FIRST
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.status import Reason
from prorl_mq.store.core import DAY_MS, EVENTS_CAP, Core, Raw, Repeat, text, texts
from prorl_mq.store.layout.keys import GROUP

JOBS_AT_ONCE: Final = 128  # that one script makes: one to two and a half milliseconds of Redis
BATCHES_CAP: Final = 200  # newest batches that a run remembers
PLACED_MS: Final = 30 * DAY_MS  # how long it is noted in which cell a run is that nobody asks for
LOSSES: Final = ("lost", "lost:shift", "lost:variance")  # fields of a run
ADMIT: Final = "admit"  # the duty that admits
TOLD_BYTES: Final = 4 << 10  # of a group's spec that goes from entry to entry with a job that began so
BEGIN_AT_ONCE: Final = 64  # samples of one call that may begin with their submission
_BEGINNING: Final = {"state": FIRST, "stage": Stage.INIT, "consumers": GROUP, "events_cap": EVENTS_CAP}
OFFER_MS: Final = 3_000
_pack: Final = msgspec.msgpack.Encoder().encode
Part = tuple[Wanted, int]  # a group as it will be, and how many of its samples are taken


def slices(groups: Sequence[Wanted]) -> list[list[Part]]:
    """Calls of at most `JOBS_AT_ONCE` jobs each. Only a group that is larger itself is divided.

    >>> groups = [Wanted(GroupRef(name), 0, wanted, 9) for name, wanted in (("a", 100), ("b", 50), ("c", 200))]
    >>> [[(group.ref, group.next, group.wanted, take) for group, take in call] for call in slices(groups)]
    [[('a', 0, 100, 100)], [('b', 0, 50, 50)], [('c', 0, 200, 128)], [('c', 128, 72, 72)]]
    """
    calls: list[list[Part]] = []
    room = 0
    for group in groups:
        left = group
        while left.wanted > 0:
            take = min(left.wanted, JOBS_AT_ONCE)
            if take > room:
                calls.append([])
                room = JOBS_AT_ONCE
            calls[-1].append((left, take))
            left = left._replace(next=left.next + take, wanted=left.wanted - take)
            room -= take
    return calls


class GroupVerbs(Core):
    """From a batch's submission to the acknowledgement of its groups, through reservoirs where it has one."""

    async def submit(self, batch: NewBatch, groups: Sequence[NewGroup], *, unbounded: bool = False) -> list[str]:
        """Stores groups: `stored`, `begun`, `already` or `conflict` for each; `['conflict']` if the batch's body
        differs; `['ended']` if it takes no groups any more. Without groups, one answer for the batch.

        `unbounded`: no quota counts what the run has, so that a few samples may begin without waiting for admission.

        Raises `OverQuota` when Redis has no memory left.
        """
        keys = self.keys
        bell = keys.draw_bell if batch.waits_in else keys.admit_bell
        queue = keys.reservoir(batch.waits_in) if batch.waits_in else keys.backlog(batch.run)
        names = [keys.batch(batch.ref), queue, keys.runs, keys.run(batch.run), bell]
        names += (keys.open_groups(batch.run), keys.dapo, keys.batches(batch.run), keys.open_groups(batch.ref))
        raw, rows = Raw(), []
        for group in groups:
            names += (keys.group(group.ref), keys.open(group.ref), keys.sealed(group.ref))
            parts = (raw.put(group.open), raw.put(group.sealed))
            rows.append((group.ref, group.digest, group.n, group.total_ms, *parts, group.family, group.images))
        begun: dict[str, Any] = {}
        samples = sum(group.n for group in groups)
        if unbounded and not batch.waits_in and 0 < samples <= BEGIN_AT_ONCE:
            names += (keys.stage(Stage.INIT), keys.deadlines, keys.events, keys.in_flight, keys.unacked)
            names += (keys.duty(ADMIT), keys.paused_runs, keys.offer)
            names += (keys.job(job_ref(group.ref, index)) for group in groups for index in range(group.n))
            begun = {**_BEGINNING, "lanes": {}, "tokens": samples, "told": TOLD_BYTES}
        arguments = {
            **begun, "digest": batch.digest, "run": batch.run, "batch": batch.ref, "groups": batch.groups,
            "jobs": batch.jobs,
            "base": order.base(batch.purpose), "ahead_us": order.ahead_us(batch.priority), "ttl_ms": 7 * DAY_MS,
            "reserved": bool(batch.waits_in), "plan": raw.put(batch.plan), "target": batch.target,
            "batches_cap": BATCHES_CAP, "items": rows,
        }  # fmt: skip
        try:
            return texts(await self.call("submit", names, arguments, *raw, of_run=batch.run))
        except OutOfMemoryError:
            message = f"Redis is full and takes no groups of batch {public(batch.ref)!r}: acknowledge results"
            raise OverQuota(message, retry_after_ms=2000) from None

    async def configure(self, run: RunRef, settings: bytes) -> None:
        """Stores a run's settings in place of those it had; a run that is not known yet is from now on."""
        keys = self.keys
        names = [keys.run_settings, keys.runs, keys.run(run)]
        await self.call("configure", names, {"run": run}, settings, of_run=run)

    async def place(self, run: RunRef, cell: str, was: str = "") -> str:
        """Notes which of several cells holds a run, in place of `was` or of nothing; the cell that is noted then."""
        about = {"cell": cell, "was": was, "ttl_ms": PLACED_MS}
        return text(await self.call("place", [self.keys.placed(run)], about))

    async def admit(self, run: RunRef, groups: Sequence[Wanted], *, lane: str | None = None) -> list[int]:
        """Makes jobs of wanted samples. Per group: jobs made, or -1 where the group has changed meanwhile. `lane`: the
        task family whose lane they are put on; None: the first stage's stream.

        While another process has the duty to admit, nothing changes: two that count by themselves could pass a quota.
        Large groups are admitted in slices; what is left of one stays in the backlog if this process dies in between.
        """
        made: dict[GroupRef, int] = {}
        for call in slices(groups):
            for (group, _), count in zip(call, await self.admit_part(run, call, lane=lane), strict=True):
                made[group.ref] = made[group.ref] + max(0, count) if group.ref in made else count
        return [made.get(group.ref, 0) for group in groups]

    async def admit_part(self, run: RunRef, parts: Sequence[Part], *, lane: str | None = None) -> list[int]:
        """One call of it: how many samples of each group are taken. A group that is taken in part stays where it is."""
        keys = self.keys
        stream = keys.stage(Stage.INIT, None, lane)
        names = [keys.backlog(run), stream, keys.deadlines, keys.events]
        names += (keys.in_flight, keys.unacked, keys.duty(ADMIT), keys.paused_runs)
        for group, take in parts:
            names.append(keys.group(group.ref))
            names += (keys.job(job_ref(group.ref, index)) for index in range(group.next, group.next + take))
        names.append(keys.family_lanes)
        arguments = {
            **_BEGINNING, "run": run, "by": self.name, "lanes": self.lane_names([stream]),
            "tokens": sum(take for _, take in parts),
            "items": [(group.ref, group.next, group.wanted, group.total_ms) for group, _ in parts],
            "take": [take for _, take in parts],
        }  # fmt: skip
        return list(await self.call("admit", names, arguments, of_run=run))

    async def offer(self, most: int, families: Collection[str]) -> None:
        """Lets a few new samples of these task families begin with their submission, while the first stage has at most
        so many entries. It ends by itself, and with this process's duty to admit. `most` of 0 takes it back.
        """
        packed = _pack({"by": self.name, "most": most, "families": dict.fromkeys(sorted(families), 1)})
        command = ("SET", self.keys.offer, packed, "PX", OFFER_MS) if most > 0 else ("DEL", self.keys.offer)
        await self.write(*command, repeat=Repeat.SAME)

    async def withdraw(self, run: RunRef, groups: Mapping[GroupRef, BatchRef], why: Withdrawal) -> list[int]:
        """Takes groups from where they wait, for good. Per group: how many jobs it has had, or -1 if it is closed.

        `groups`: each with its batch. The first reason stays.
        """
        keys = self.keys
        names = [keys.backlog(run), keys.reservoir(run), keys.due]
        for group, batch in groups.items():
            names += (keys.group(group), keys.reservoir(batch), keys.parked(batch))
        return list(await self.call("withdraw", names, {"why": why, "items": list(groups)}, of_run=run))

    async def settle(self, verdict: Settlement, *, linger_ms: int) -> str:
        """Applies a verdict once: `refilled`, `parked`, the record's id, or `already`; `moved` says that the group or
        its batch has changed since (decide again).
        """
        keys, run, batch = self.keys, run_of(verdict.ref), BatchRef(verdict.batch)
        names = [keys.due, keys.group(verdict.ref), keys.batch(batch), keys.run(run)]
        names += (keys.backlog(run), keys.admit_bell, keys.results(run))
        names += (keys.open(verdict.ref), keys.sealed(verdict.ref), keys.open_groups(run), keys.open_groups(batch))
        if verdict.seen is not None:
            names += (keys.drawn(batch), keys.carried(run), keys.carrying, keys.draw_bell, keys.parked(batch))
        for index in range(verdict.jobs if not verdict.wanted and not verdict.park else 0):
            names.append(keys.job(job_ref(verdict.ref, index)))
        names += (keys.fork(verdict.ref), keys.cancellable(run), keys.counters)
        arguments = {
            "entry": verdict.entry, "ref": verdict.ref, "run": run, "batch": batch, "changes": verdict.changes,
            "wanted": verdict.wanted, "verdict": verdict.verdict,
            "bytes": verdict.bytes, "linger_ms": linger_ms, "ttl_ms": 7 * DAY_MS, "park": verdict.park,
            "counts": verdict.counts, "seen": verdict.seen and verdict.seen._asdict(),
            "tally": [part for pair in verdict.tally for part in pair], "trainers": TRAINERS,
            "losses": [part for pair in zip(LOSSES, verdict.losses, strict=False) if pair[1] for part in pair],
        }  # fmt: skip
        return text(await self.call("settle", names, arguments, verdict.record, of_run=run))

    async def ack(self, run: RunRef, items: Sequence[Ack]) -> list[str]:
        """Deletes acknowledged results with all that belongs to them: `acked` or `already`."""
        keys = self.keys
        names = [keys.results(run), keys.run(run), keys.archive(run), keys.archiving, keys.archive_state]
        for item in items:
            names += (keys.group(item.ref), keys.batch(BatchRef(item.batch)), *item.blobs)
        names.append(keys.unacked)
        rows = [(item.cursor, item.ref, len(item.blobs), item.bytes, int(item.admitted)) for item in items]
        arguments = {"run": run, "consumers": TRAINERS, "ttl_ms": 7 * DAY_MS, "items": rows}
        return texts(await self.call("ack", names, arguments, of_run=run))

    async def shelve(self, run: RunRef, items: Mapping[str, Sequence[str]], counter: str) -> list[str]:
        """Lets go of groups that waited for the archive, each entry with its blobs: `shelved` or `already`. `counter`:
        what became of them, as a field of the archive's state.
        """
        keys = self.keys
        names = [keys.archive(run), keys.archiving, keys.archive_state]
        names += (blob for blobs in items.values() for blob in blobs)
        rows = [(entry, len(blobs)) for entry, blobs in items.items()]
        return texts(await self.call("shelve", names, {"run": run, "counter": counter, "items": rows}))

    async def draw(
        self,
        batch: BatchRef,
        source: BatchRef | RunRef,
        groups: Mapping[GroupRef, BatchRef],
        *,
        drawn: int,
        version: int | None = None,
    ) -> int:
        """Moves groups, each with the batch that brought it, from a reservoir to the backlog: how many, or -1.

        `drawn` is how many the batch had drawn when the caller looked: two callers never draw for one look.
        """
        keys, run = self.keys, run_of(batch)
        names = [keys.batch(batch), keys.reservoir(source), keys.drawn(batch), keys.run(run), keys.backlog(run)]
        names += (keys.admit_bell, keys.open_groups(batch))
        for group, origin in groups.items():
            names += (keys.group(group), keys.batch(origin), keys.open_groups(origin))
        arguments = {
            "batch": batch, "run": run, "open": Phase.OPEN, "drawn": drawn, "ttl_ms": 7 * DAY_MS, "items": list(groups),
            "version": None if version is None else str(version),  # as text: Lua rounds above 2^53
        }  # fmt: skip
        return int(await self.call("draw", names, arguments, of_run=run))

    async def adopt(self, batch: BatchRef, groups: Mapping[GroupRef, BatchRef]) -> int:
        """Gives groups of the run's carry-over, each with the batch that left it, to a batch.

        How many of them are due, or -1 when it takes none.
        """
        keys, run = self.keys, run_of(batch)
        names = [keys.batch(batch), keys.carried(run), keys.drawn(batch), keys.due, keys.carrying]
        names.append(keys.open_groups(batch))
        for group, origin in groups.items():
            names += (keys.group(group), keys.batch(origin), keys.open_groups(origin))
        arguments = {"batch": batch, "run": run, "open": Phase.OPEN, "ttl_ms": 7 * DAY_MS, "items": list(groups)}
        return int(await self.call("adopt", names, arguments, of_run=run))

    async def wake(self, batch: BatchRef, groups: Sequence[GroupRef]) -> int:
        """Makes parked groups of a batch due again: how many were parked."""
        names = [self.keys.due, self.keys.parked(batch), *map(self.keys.group, groups)]
        return int(await self.call("wake", names, {"items": list(groups)}, of_run=run_of(batch)))

    async def halt(self, batch: BatchRef, reason: Reason, *, carry: bool = False, keep_ms: int = 0) -> str:
        """Ends a batch's draws and acceptances: `halted` or `already`. `carry`: the rest continues without it."""
        keys, run = self.keys, run_of(batch)
        names = [keys.batch(batch), keys.drawn(batch), keys.carried(run), keys.carrying, keys.draw_bell]
        names.append(keys.counters)
        arguments = {
            "batch": batch, "run": run, "open": Phase.OPEN, "ending": Phase.ENDING, "reason": reason, "carry": carry,
            "keep_ms": keep_ms,
        }  # fmt: skip
        return text(await self.call("halt", names, arguments, of_run=run))

    async def close(self, batch: BatchRef, report: bytes, *, groups: int) -> str:
        """Publishes a batch's report: its id, `already`, or `open` when it has other than `groups` closed groups."""
        keys = self.keys
        names = [keys.batch(batch), keys.results(run_of(batch)), keys.dapo, keys.run(run_of(batch))]
        names += (keys.cancellable(run_of(batch)), keys.open_groups(batch))
        arguments = {
            "batch": batch, "ending": Phase.ENDING, "closed": Phase.CLOSED, "groups": groups, "ttl_ms": 7 * DAY_MS,
            "trainers": TRAINERS,
        }  # fmt: skip
        return text(await self.call("close", names, arguments, report, of_run=run_of(batch)))
