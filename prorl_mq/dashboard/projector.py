"""Keeps the mirror in step with the event stream, and rebuilds it where the stream begins after the cursor."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from redis.exceptions import RedisError

from prorl_mq.clock import monotonic
from prorl_mq.dashboard import places, truth
from prorl_mq.dashboard import rq_format as rq
from prorl_mq.dashboard.mirror import Mirror, TakenOver
from prorl_mq.dashboard.places import Ended, Record
from prorl_mq.dashboard.truth import TaskName, Told
from prorl_mq.dashboard.visits import LIVE, JobVisits, Status, Visit
from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import GroupRef, JobRef, group_of
from prorl_mq.schema.messages import Stage
from prorl_mq.store import events
from prorl_mq.store.results import before
from prorl_mq.store.server.connection import OUTAGES
from prorl_mq.store.store import Store, batched
from prorl_mq.store.workers import living

log = logging.getLogger("prorl_mq.dashboard")

PACE_S: Final = 0.25  # between two batches: what happens to a job within one is written once
REST: Final = 24  # times as long as a batch took, so that the mirror never takes more than a twenty-fifth of a core
WORKERS_S: Final = 2.0
BEYOND: Final = 16  # so small a part of a registry's window is written before old records are looked for
ENTRIES: Final = 4_096  # of the event stream in one batch
TASKS: Final = 20_000  # tasks that are remembered
LOOK_S: Final = 1.0  # between two looks at who writes the mirror, while standing by
PATIENCE_S: Final = 30.0  # for how long that one may be silent
UNTOLD: Final = Told()
UNNAMED: Final = TaskName()
Changes = dict[JobRef, set[Stage]]


class Fallen(Exception):
    """The event stream no longer has what follows the cursor, or has never had it."""


class Projector:
    """One process's projector. The one that was started last writes; others stand by until it ends."""

    def __init__(self, store: Store, mirror: Mirror) -> None:
        self._store = store
        self._mirror = mirror
        self._histories: dict[JobRef, JobVisits] = {}  # of jobs that have not ended
        self._tasks: dict[GroupRef, TaskName] = {}
        self._holders: dict[str, str] = {}  # started record → worker
        self._workers_due = 0.0
        self._untrimmed = 0  # records written since old ones were looked for

    async def run(self, *, rebuild: bool = False) -> None:
        """Until it is cancelled. Raises `ConfigurationError` if the mirror shows another namespace."""
        refused, force = False, True
        while True:
            try:
                if refused:
                    force = await self._stand_by()
                refused, began = False, time.process_time()
                cursor = await self.rebuild() if rebuild else await self.resume(force=force)
                force = False
                await _rest(began)
                await self._follow(cursor)
            except Fallen:
                log.warning("the event stream has gone past the mirror, which is rebuilt")
                rebuild = True
            except TakenOver:
                log.warning("another process writes the mirror now; this one stands by until it ends")
                refused, rebuild = True, False
            except (RedisUnavailable, RedisError, *OUTAGES) as error:
                log.warning("Redis failed the mirror, which continues from its cursor: %s", error)
                rebuild = False
                await asyncio.sleep(1.0)

    async def resume(self, *, force: bool = True) -> str:
        """Takes up the mirror where it was left, or builds it; the cursor.

        Raises `TakenOver`: without `force` also if somebody has it already.
        """
        self._forget()
        cursor = await self._mirror.take_over(force=force)
        if cursor is None:
            return await self._build()
        refs = {rq.job_of(record)[0] for record in await self._mirror.live()}
        for chunk in batched(sorted(refs), truth.SLICE):
            await self._load(await truth.live(self._store, chunk))
        await self._mirror.write([], {}, cursor)
        return cursor

    async def rebuild(self) -> str:
        """Rebuilds every record from what the queue holds; the cursor to follow from."""
        self._forget()
        await self._mirror.take_over()
        return await self._build()

    async def _build(self) -> str:
        _, cursor = await events.ends(self._store)
        await self._mirror.clear()
        async for told in truth.unsettled(self._store):
            await self._load(told)
        async for told in truth.published(self._store, places.KEPT):
            await self._load(told)
        await self._mirror.write([], {}, cursor)
        return cursor

    async def step(self, cursor: str) -> str:
        """Brings what follows the cursor into the mirror; the cursor after it. Raises `Fallen`."""
        entries = await events.after(self._store, cursor, limit=ENTRIES)
        first, last = await events.ends(self._store)
        if before(cursor, first) or before(last, cursor):
            raise Fallen
        if entries:
            cursor = entries[-1].id
            await self._project(_lines(entries), cursor)
        if monotonic() >= self._workers_due:
            await self._show_workers()
            await self._trim()
            self._workers_due = monotonic() + WORKERS_S
        return cursor

    async def _trim(self) -> None:
        await self._mirror.trim(await self._store.now_ms())
        self._untrimmed = 0

    async def let_go(self) -> None:
        """For whoever stands by: this process ends."""
        with contextlib.suppress(TakenOver, RedisError, *OUTAGES):
            await self._mirror.let_go()

    async def _stand_by(self) -> bool:
        """Until nobody writes the mirror; true if its writer has only fallen silent, so that it must be forced."""
        seen, since = await self._mirror.sign_of_life(), monotonic()
        while seen is not None and monotonic() - since < PATIENCE_S:
            await asyncio.sleep(LOOK_S)
            if (now := await self._mirror.sign_of_life()) != seen:
                seen, since = now, monotonic()
        return seen is not None

    async def _follow(self, cursor: str) -> None:
        while True:
            began = time.process_time()
            cursor = await self.step(cursor)
            await _rest(began)
            block_ms = int(WORKERS_S * 1000)
            await events.wait_after(self._store, cursor, limit=1, wait_ms=block_ms)

    async def _project(self, lines: Mapping[JobRef, Sequence[str]], cursor: str) -> None:
        strangers = [ref for ref in lines if ref not in self._histories and "\tadmit\t" not in lines[ref][0]]
        loaded = {ref: JobVisits(told.lines) for ref, told in (await truth.live(self._store, strangers)).items()}
        changes: Changes = {ref: set(history.visits) for ref, history in loaded.items()}
        done: dict[str, Ended] = {}
        for ref, told in lines.items():
            history = self._histories[ref] = loaded.get(ref) or self._histories.get(ref) or JobVisits()
            mine = changes.setdefault(ref, set())
            for line in told:
                stages = history.add(line)
                mine |= stages
                _count(done, [history.visits[stage] for stage in stages if stage in history.visits])
        over = [ref for ref in changes if self._histories[ref].over]
        ends = await truth.ended(self._store, over)
        await self._name({group_of(ref) for ref in changes})
        await self._mirror.write(self._records(changes, ends), done, cursor)
        self._untrimmed += sum(map(len, changes.values()))
        if self._untrimmed > places.KEPT // BEYOND:
            await self._trim()
        for ref in over:
            del self._histories[ref]

    async def _load(self, told: Mapping[JobRef, Told]) -> None:
        """Shows jobs as the queue tells of them; those that it knows no more are taken out if they were shown."""
        changes: Changes = {}
        for ref, each in told.items():
            history = self._histories[ref] = JobVisits(each.lines)
            changes[ref] = set(history.visits) or set(Stage)
        await self._name({group_of(ref) for ref in changes})
        await self._mirror.write(self._records(changes, told), {}, None)
        await self._trim()
        for ref in changes:
            if self._histories[ref].over or not self._histories[ref].visits:
                del self._histories[ref]

    def _records(self, changes: Changes, told: Mapping[JobRef, Told]) -> list[Record]:
        records = []
        for ref, stages in changes.items():
            visits, known = self._histories[ref].visits, told.get(ref, UNTOLD)
            about = rq.About(known.task or self._tasks.get(group_of(ref), UNNAMED), known.sample)
            described = rq.description(ref, about.task)
            for stage in stages:
                record = _record(ref, stage, visits.get(stage), about, described)
                records.append(record)
                self._holders.pop(record.id, None)
                if record.fields and record.status is Status.STARTED:
                    self._holders[record.id] = visits[stage].worker
        return records

    async def _name(self, groups: Iterable[GroupRef]) -> None:
        """Learns the tasks of groups that are new here."""
        if len(self._tasks) > TASKS:
            self._tasks.clear()
        new = [group for group in groups if group not in self._tasks]
        for chunk in batched(new, truth.SLICE):
            self._tasks.update(await truth.tasks(self._store, chunk))

    async def _show_workers(self) -> None:
        current = {worker: record for record, worker in self._holders.items()}
        await self._mirror.workers(await living(self._store), current, await self._store.now_ms())

    def _forget(self) -> None:
        self._histories.clear()
        self._holders.clear()
        self._workers_due = 0.0


async def _rest(began_s: float) -> None:
    """Under load batches grow instead, and the larger one is, the less of it is ever written."""
    await asyncio.sleep(max(PACE_S, REST * (time.process_time() - began_s)))


def _record(ref: JobRef, stage: Stage, visit: Visit | None, about: rq.About, described: str) -> Record:
    name = rq.record_id(ref, stage)
    if visit is None:
        return Record(name, stage, Status.CANCELED, 0, None)
    at_ms = visit.ended_ms if not visit.live else visit.started_ms or visit.enqueued_ms
    return Record(name, stage, visit.status, at_ms, rq.job_hash(ref, stage, visit, described), rq.result(visit, about))


def _count(done: dict[str, Ended], visits: Iterable[Visit]) -> None:
    """Adds visits that have just ended to what their workers have done."""
    for visit in visits:
        if visit.status not in LIVE and visit.worker:
            before, seconds = done.get(visit.worker, Ended()), (visit.ended_ms - visit.started_ms) / 1000
            good = visit.status is Status.FINISHED
            done[visit.worker] = Ended(before.finished + good, before.failed + (not good), before.seconds + seconds)


def _lines(entries: Sequence[events.EventEntry]) -> dict[JobRef, list[str]]:
    """The events of stream entries, by job."""
    found: dict[JobRef, list[str]] = {}
    for entry in entries:
        for line in entry.lines.decode().strip("\n").split("\n"):
            ref, _, event = line.partition("\t")
            found.setdefault(JobRef(ref), []).append(event)
    return found
