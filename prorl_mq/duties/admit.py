"""Admission: groups move from the runs' backlogs onto the first stage, shared out by `sharing`.

The first stage is kept at no more than twice its live slots, so that a new run or a refill never waits behind a
queue that is longer than the next few moments' work. A lane of a task family is kept so by the slots of the workers
that have the family; groups of one that no worker has, that is in quarantine, or whose attempts fail (`breakers`),
wait in their backlog, where no deadline runs.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from prorl_mq.clock import monotonic
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.behind import BehindFronts
from prorl_mq.rules import fair_share, memory
from prorl_mq.rules.fair_share import Path
from prorl_mq.rules.quotas import Usage, allowed
from prorl_mq.rules.turns import Turns
from prorl_mq.schema.ids import RunRef, TenantId, run_ref, tenant_of
from prorl_mq.schema.items import Lane, Wanted
from prorl_mq.schema.messages import Purpose, Stage
from prorl_mq.schema.settings import Book
from prorl_mq.store import bells, families, run_settings, runs, streams
from prorl_mq.store.families import Abilities
from prorl_mq.store.runs import Heads
from prorl_mq.store.server.faults import RedisError, is_everybodys
from prorl_mq.store.store import Store, batched
from prorl_mq.store.workers import Roster, slots

HEADS = 32  # groups of one run and purpose looked at in one turn
PAST = 256  # the same while groups wait for their task family; `BehindFronts` finds others behind these
FEW = 8  # runs whose memory is read whether or not they would have a part: it costs no round trip
RUNS = 64  # that have their turn at one look, whether or not anything rang for them
LOOK_AGAIN_S = 0.5  # how long the count of live slots is good for
TRY_S = 30.0
IDLE_BLOCK_S = 1.0
HELD_BLOCK_S = 0.1  # while quotas hold everything back that waits: nothing rings when one frees
FULL_WAIT_S = 0.004
FULL_WAIT_MAX_S = 0.1
AMPLE = 4_096  # results for which there must be room before samples may begin that nobody counts


class Admission:
    """The admitting loop's memory: what each has had, the fronts of the backlogs, and the last look at slots.

    Losing it costs fairness for one group each. A front is read when its run has something new, when groups of it were
    admitted, and in turn; `admit` refuses a group that has changed since.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._apart = Apart(store, "admit")
        self._behind = BehindFronts(store, self._apart, front=PAST)
        self._had: dict[Path, float] = {}
        self._roster = Roster(store)
        self._slots = 0
        self._able = Abilities((), {})
        self._full: frozenset[str] = frozenset()  # families of groups that had to wait when last seen
        self._tries: dict[tuple[str, str], float] = {}  # tenants' families that fail → when one of their groups may go
        self._look_at = 0.0
        self._full_wait_s = FULL_WAIT_S
        self._group_size: dict[RunRef, float] = {}  # of the groups seen last
        self._turns = Turns[RunRef](RUNS)
        self._changed: dict[RunRef, None] = {}  # runs whose front must be read again, in order
        self._heads: Heads = {}
        self._looked: dict[RunRef, int] = {}  # how many groups of each run's purposes were asked for
        self._paused: set[RunRef] = set()
        self._over: set[RunRef] = set()  # runs that held too many bytes at the last turn
        self._offers = True  # few samples may begin with their submission; perhaps by a process of this name before

    async def turn(self) -> float:
        """Fills the first stage up. Waits for the bell when there is nothing to admit."""
        store = self.store
        await self._look()
        queued, on_lanes, changed, paused, _ = await asyncio.gather(
            streams.length(store, store.keys.stage(Stage.INIT)),
            self._on_lanes(),
            bells.to_admit(store),
            runs.held_back(store),
            self._take_back(),
        )
        self._paused = paused
        self._note(changed)
        await self._take_back()  # for what those marks tell of; mostly it is done
        room = 2 * self._slots - queued - on_lanes
        if room <= 0:
            self._full_wait_s = min(FULL_WAIT_MAX_S, 2 * self._full_wait_s)
            return self._full_wait_s if self._slots else LOOK_AGAIN_S
        await self._refresh(room)
        await self._behind.look(self._blocked(), self._waits)
        lines = self._lines()
        self._full = frozenset(self._able.quarantined) | await self._waiting(lines)
        admitted = await self._admit(room, lines) if self._heads else False
        self._look_past()
        if not admitted:
            if not self._heads:
                await self._offer(queued, on_lanes)
            self._note(await bells.to_admit(store, within_s=HELD_BLOCK_S if self._heads else IDLE_BLOCK_S))
            return 0.0
        self._full_wait_s = FULL_WAIT_S
        return FULL_WAIT_S if room < self._slots else 0.0

    async def _take_back(self) -> None:
        """Something waits: what comes now waits behind it, or is shared out with it."""
        if self._offers and self._changed:
            await self.store.offer(0, ())
            self._offers = False

    async def _offer(self, queued: int, on_lanes: int) -> None:
        """Nothing waits, so that whatever has no quota would have its turn at once: until something waits it need not
        ask for it. Only of task families that every reader of the first stage has, and that do not fail.
        """
        able, first = self._able, Lane(Stage.INIT)
        sets = [set(able.sets.get(each.families, ())) for each in able.readers(first)]
        failing = {each.key.name for each in able.shut}
        families = set.intersection(*sets) - failing - able.quarantined.keys() if sets else set()
        used = await runs.usage(self.store, ())
        space = memory.room(used.memory, memory.expected(used.jobs, used.sizes))
        size = max(memory.FIRST_BYTES, *used.sizes.values(), 1)
        most = 2 * self._slots - on_lanes
        looked = not self._changed and monotonic() < self._look_at
        ample = space is None or space // size >= AMPLE
        offers = bool(families) and looked and ample and most > queued
        if offers or self._offers:
            await self.store.offer(most if offers else 0, families if offers else ())
        self._offers = offers

    async def _look(self) -> None:
        if monotonic() > self._look_at:
            self._able = await families.abilities(self.store, await self._roster.living())
            self._slots = slots(self._able.workers, Stage.INIT)
            fresh = {(each.key.tenant, each.key.name): monotonic() + TRY_S for each in self._able.shut}
            self._tries = {shut: self._tries.get(shut, at) for shut, at in fresh.items()}
            await families.look(self.store)
            if not self._turns.left:
                self._turns.over(await runs.known(self.store))
            self._note(self._turns.next())
            self._look_at = monotonic() + LOOK_AGAIN_S

    def _note(self, changed: Iterable[RunRef] | None) -> None:
        if changed is None:  # marks are lost: all runs are looked at
            self._turns, self._look_at = Turns[RunRef](RUNS), 0.0
        else:
            self._changed |= dict.fromkeys(changed)

    async def _refresh(self, room: int) -> None:
        looked = {run: self._fitting(run, room) for run in self._changed if not self._apart.left_out(run)}
        found = await self._fronts(looked)
        for run in looked:
            self._heads.pop(run, None)
        self._heads |= found
        self._looked |= looked
        self._group_size |= {run: _mean(lines) for run, lines in found.items()}
        self._changed = {run: None for run in self._changed if run not in looked}

    async def _fronts(self, looked: Mapping[RunRef, int]) -> Heads:
        """Of all runs together; where that fails, of each by itself."""
        try:
            return await runs.heads(self.store, looked)
        except RedisError as error:
            if is_everybodys(error):
                raise
        found: Heads = {}
        for run, most in looked.items():
            found |= await self._apart.do(run, partial(runs.heads, self.store, {run: most})) or {}
        return found

    def _fitting(self, run: RunRef, room: int) -> int:
        """About as many groups as fit into `room`, if they are like the run's last ones."""
        if self._full or self._tries:
            return PAST
        return min(HEADS, 1 + int(room / self._group_size.get(run, 1.0)))

    async def _on_lanes(self) -> int:
        """Entries on lanes of the first stage, no more of each than those who can take them are kept supplied with: a
        family that few workers have, or none, does not keep the others waiting.
        """
        lanes = [Lane(Stage.INIT).ahead, *(lane for lane in self.store.family_lanes if lane.stage is Stage.INIT)]
        lengths = await families.lengths(self.store, lanes)
        return sum(min(length, 2 * self._able.slots(lane)) for lane, length in lengths.items())

    async def _waiting(self, lines: Mapping[Path, Sequence[Wanted]]) -> set[str]:
        """Task families of the groups in sight of which no more may come: their lane is full, or nobody has them."""
        found = {group.family for groups in lines.values() for group in groups}
        lanes = [Lane(Stage.INIT, family=family) for family in sorted(found) if family]
        lacked = [lane for lane in lanes if self._able.divided(lane) or not self._able.slots(lane)]
        lengths = await families.lengths(self.store, lacked)
        return {lane.family or "" for lane in lacked if lengths[lane] >= 2 * self._able.slots(lane)}

    def _waits(self, tenant: str, group: Wanted) -> bool:
        return group.family in self._full or (tenant, group.family) in self._tries

    def _ready(self, tenant: str, groups: Iterable[Wanted]) -> Iterator[Wanted]:
        """The groups that may go. Of a family that fails one does now and then: no other job may be left to try."""
        for group in groups:
            shut = (tenant, group.family)
            if not self._waits(tenant, group):
                yield group
            elif group.family not in self._full and monotonic() >= self._tries[shut]:
                self._tries[shut] = monotonic() + TRY_S
                yield group

    def _blocked(self) -> list[Path]:
        """Lines of whose front all groups wait for task families, while more may lie behind them."""
        return [
            (*run.split(":"), purpose)
            for run, purposes in self._heads.items()
            for purpose, groups in purposes.items()
            if len(groups) >= PAST and not self._apart.left_out(run)
            if all(self._waits(tenant_of(run), group) for group in groups)
        ]

    def _lines(self) -> dict[Path, Sequence[Wanted]]:
        """Groups in sight, in order. One may have moved from behind a front into it."""
        lines: dict[Path, Sequence[Wanted]] = {
            (*run.split(":"), purpose): groups
            for run, purposes in self._heads.items()
            for purpose, groups in purposes.items()
        }
        for path, behind in self._behind.groups.items():
            front = lines.get(path, ())
            seen = {group.ref for group in front}
            lines[path] = [*front, *(group for group in behind if group.ref not in seen)]
        return lines

    def _look_past(self) -> None:
        """Has fronts read again that groups of a full family end, as far as others may lie behind those."""
        for run, purposes in self._heads.items():
            looked = self._looked[run]
            cut = [groups for groups in purposes.values() if looked <= len(groups) < PAST]
            tenant = tenant_of(run)
            if any(self._waits(tenant, group) for groups in cut for group in groups):
                self._changed[run] = None

    async def _admit(self, room: int, lines: Mapping[Path, Sequence[Wanted]]) -> bool:
        """True if any group was chosen."""
        chosen: dict[RunRef, list[Wanted]] = {}
        shares = await self._choose(room, lines)
        self._behind.admitted(shares)
        for path, groups in shares.items():
            chosen.setdefault(run_ref(*path[:2]), []).extend(groups)
        self._note(chosen)
        for run, wanted in chosen.items():
            for lane, groups in self._by_lane(wanted).items():
                for chunk in batched(groups, HEADS):
                    await self._apart.do(run, partial(self.store.admit, run, chunk, lane=lane))
        return bool(chosen)

    async def _choose(self, room: int, lines: Mapping[Path, Sequence[Wanted]]) -> dict[Path, list[Wanted]]:
        """Shares the room out. What a run holds is read only of those that would have a part."""
        left = self._heads.keys() - self._paused
        heads = {run: self._heads[run] for run in self._heads if run in left and not self._apart.left_out(run)}
        shown = {path: groups for path, groups in lines.items() if run_ref(*path[:2]) in heads}
        cut = {path for path, groups in shown.items() if len(groups) >= self._looked[run_ref(*path[:2])]}
        ready = {path: list(self._ready(path[0], groups)) for path, groups in shown.items()}
        probable = list(heads) if len(heads) <= FEW else [run for run in heads if run in self._over]
        book, usage = await asyncio.gather(  # later than the heads: what was set before them holds for them
            run_settings.book(self.store), runs.usage(self.store, probable)
        )
        usage = await runs.with_tenants(self.store, book, usage)
        while True:
            had = dict(self._had)
            quotas = allowed(book, _supposed(usage, heads))
            chosen = fair_share.share(ready, had, room, weights(book, heads), quotas, cut)
            unknown = [run for run in dict.fromkeys(run_ref(*path[:2]) for path in chosen) if run not in usage.bytes]
            if not unknown:
                break
            usage = runs.told(usage, await runs.held(self.store, unknown))
        self._had = had
        self._over = {
            run for run, count in usage.bytes.items() if count > memory.unacked_limit(book.run(run), usage.memory)
        }
        return chosen

    def _by_lane(self, groups: Sequence[Wanted]) -> dict[str | None, list[Wanted]]:
        """The groups for the stage's stream (None), and for the lane of each family that some worker lacks."""
        found: dict[str | None, list[Wanted]] = {}
        for group in groups:
            divided = group.family and self._able.divided(Lane(Stage.INIT, family=group.family))
            found.setdefault(group.family if divided else None, []).append(group)
        return found


def _mean(lines: Mapping[Purpose, list[Wanted]]) -> float:
    sizes = [group.wanted for groups in lines.values() for group in groups]
    return max(1.0, sum(sizes) / len(sizes))


def _supposed(usage: Usage, runs: Iterable[RunRef]) -> Usage:
    """The usage as if runs held nothing of which it does not say anything yet."""
    nothing = dict.fromkeys((run for run in runs if run not in usage.bytes), 0)
    small = {run: 0 for run in nothing if run not in usage.jobs}
    return replace(usage, bytes=nothing | usage.bytes, sizes=small | usage.sizes)


def weights(book: Book, heads: Heads) -> dict[Path, float]:
    """Of the tenants, of their runs, and of the two purposes of a run."""
    found: dict[Path, float] = {}
    for run in heads:
        tenant, name = run.split(":")
        settings = book.run(run)
        found[tenant,] = book.tenant(TenantId(tenant)).weight
        found[tenant, name] = settings.weight
        found[tenant, name, Purpose.EVAL] = settings.eval_share
        found[tenant, name, Purpose.TRAIN] = 1.0 - settings.eval_share
    return found
