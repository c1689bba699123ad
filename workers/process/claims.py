"""Entries that were read become jobs: with what the entry tells, or by a claim."""

import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, group_of
from prorl_mq.schema.items import Claim, Entry, GroupSpec, Held, Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.store import Store
from workers import metrics
from workers.process.lanes import Lanes
from workers.process.read import Read
from workers.settings import WorkerSettings
from workers.stages.work import Hold, Work

SPECS_KEPT: Final = 4096
BUDGET_GRACE_MS: Final = 10_000  # a lease outlives its stage's budget by this, then it ends whoever renews it


class Known(NamedTuple):
    """A group's spec, and the time in Redis that it was read at, or a little earlier."""

    read_ms: int
    specs: work.Specs


class Claimed(NamedTuple):
    """A job under lease. `known`: it was given before, in a call whose answer may have been lost."""

    work: Work
    known: bool


class Claims:
    """Jobs of one worker, with a memory of the groups that it has met. `hold`: how one of them gets its lease later."""

    def __init__(self, settings: WorkerSettings, store: Store, lanes: Lanes, hold: Hold) -> None:
        self._hold = hold
        self._settings = settings
        self._store = store
        self._lanes = lanes
        self._specs: OrderedDict[GroupRef, Known] = OrderedDict()

    async def begin(self, read: Read) -> tuple[list[Work], list[Claimed]]:
        """Jobs that may run on what their entries tell, and those that had to be claimed for it."""
        read_at = monotonic()
        groups = await self._known_of(read.entries)
        works, rest = [], []
        for entry in await self._diverted(read, groups):
            known = groups.get(group_of(entry.ref))
            if known is None or entry.claim is None or entry.long:
                rest.append(entry)
            else:
                works.append(self._work(entry, entry.claim, known, read.lane, read_at))
        return works, await self._claimed(rest, groups, read.lane) if rest else []

    async def claim(self, read: Read) -> list[Claimed]:
        """Leases for the jobs of these entries that may run; the others are over, another worker's, or put on the lanes
        of task families that this one lacks.
        """
        groups = await self._known_of(read.entries)
        entries = await self._diverted(read, groups)
        return await self._claimed(entries, groups, read.lane) if entries else []

    async def _claimed(
        self, entries: Sequence[Entry], groups: Mapping[GroupRef, work.Specs], lane: Lane
    ) -> list[Claimed]:
        # An entry without a spec belongs to a group that is settled: its claim answers so, and removes it.
        specs = [groups.get(group_of(entry.ref)) for entry in entries]
        budgets = [_budget_ms(known, lane.stage) for known in specs]
        lease_ms = self._settings.lease_ms
        claims = await self._store.claim(
            lane.stage, lane.node, entries, budgets, lease_ms, lane.family, front=lane.front
        )
        return [
            Claimed(self._work(entry, claim, known, lane), claim.status == "already")
            for entry, claim, known in zip(entries, claims, specs, strict=True)
            if claim.granted and known is not None
        ]

    def _work(self, entry: Entry, claim: Claim, specs: work.Specs, lane: Lane, read_at: float | None = None) -> Work:
        stage, node, family, front = lane
        pool, told = specs.spec.pool, entry.told
        held = Held(entry.ref, claim.token, entry.entry, stage, node, pool, family, read_at, front, told)
        budget_ms = _budget_ms(specs, lane.stage)
        return Work(held=held, claim=claim, spec=specs.spec, sealed=specs.sealed, budget_ms=budget_ms, holds=self._hold)

    async def _diverted(self, read: Read, groups: Mapping[GroupRef, work.Specs]) -> list[Entry]:
        """The entries that are left for this worker. One that could not be diverted is claimed: its job is over, leased
        already, or behind another entry, and the claim says which.
        """
        known = {*self._lanes.taken, read.lane.family, None}
        if {_family(specs) for specs in groups.values()} <= known:
            return read.entries
        families = {entry: _family(groups.get(group_of(entry.ref))) for entry in read.entries}
        lacking = {entry: family for entry, family in families.items() if family not in known and family}
        if not lacking:
            return read.entries
        answers = await self._store.divert(read.lane, list(lacking), list(lacking.values()))
        metrics.diverted.inc(answers.count("diverted"))
        gone = {entry for entry, answer in zip(lacking, answers, strict=True) if answer in {"diverted", "already"}}
        return [entry for entry in read.entries if entry not in gone]

    async def _known_of(self, entries: list[Entry]) -> dict[GroupRef, work.Specs]:
        """Known specs of the groups behind entries. A group's id may come again with another body, once it was
        acknowledged: so a spec serves only entries that were on their stream when it was read.
        """
        newest: dict[GroupRef, int] = {}
        for entry in entries:
            ref, added = group_of(entry.ref), _added_ms(entry)
            newest[ref] = max(newest.get(ref, 0), added)
            if entry.told is not None and self._settings.stage is not Stage.EVAL:  # which believes no worker of RUN
                self._learn(ref, added, entry.told)
        now_ms = max(newest.values(), default=0)
        missing = [ref for ref, added in newest.items() if ref not in self._specs or self._specs[ref].read_ms < added]
        if missing:
            found = await work.specs(self._store, missing, sealed=self._settings.stage is Stage.EVAL)
            for ref, specs in zip(missing, found, strict=True):
                self._specs.pop(ref, None)
                if specs is not None:
                    self._specs[ref] = Known(now_ms, specs)
        groups = {ref: self._specs[ref].specs for ref in newest if ref in self._specs}
        while len(self._specs) > SPECS_KEPT:
            self._specs.popitem(last=False)
        return groups

    def _learn(self, ref: GroupRef, added: int, packed: bytes) -> None:
        """Remembers what an entry tells of its group."""
        known = self._specs.get(ref)
        if known is None or known.read_ms < added:
            with contextlib.suppress(msgspec.MsgspecError):  # it is read, as it would be without
                self._specs[ref] = Known(added, work.Specs(decode(packed, GroupSpec), b""))
                self._specs.move_to_end(ref)


def _family(specs: work.Specs | None) -> str | None:
    return None if specs is None else specs.spec.data_source


def _budget_ms(specs: work.Specs | None, stage: Stage) -> int:
    if specs is None:
        return 1
    limits = specs.spec.limits
    if stage is Stage.RUN:  # its clock stands while infrastructure is waited for, perhaps for as long again
        return 2 * limits.run_ms + BUDGET_GRACE_MS
    return (limits.init_ms if stage is Stage.INIT else limits.eval_ms) + BUDGET_GRACE_MS


def _added_ms(entry: Entry) -> int:
    """Redis's time when an entry was added, which its id holds."""
    return int(entry.entry.partition("-")[0])
