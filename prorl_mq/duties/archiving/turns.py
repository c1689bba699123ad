"""Archiving: groups that trainers have acknowledged are written to files, and let go when the files are synced.

Nothing waits for it but what it holds: a disk that is slow, full or away leaves groups waiting in Redis, up to a bound
of bytes above which `ack` passes them over.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from prorl_mq.archive import table
from prorl_mq.archive.folder import Keeping
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import WholeGroup
from prorl_mq.clock import monotonic
from prorl_mq.converters.arrow import arrow
from prorl_mq.duties.archiving import keeping
from prorl_mq.duties.archiving.writer import GroupWriter
from prorl_mq.duties.tasks import Tasks
from prorl_mq.errors import ConfigurationError, PayloadUnavailable, RedisUnavailable
from prorl_mq.rules import memory as shares
from prorl_mq.schema.codec import decode, unpack_trajectory
from prorl_mq.schema.ids import RunRef, time_of
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.store import results, run_settings
from prorl_mq.store.archive import waiting
from prorl_mq.store.archive.waiting import WaitingGroup
from prorl_mq.store.payloads import owner, reading
from prorl_mq.store.server import fitness
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")
T = TypeVar("T")
GATHER_MS: Final = 30_000  # how long groups of a busy run are gathered for one file
IDLE_MS: Final = 500  # the same, of a run of which no more are to come
TOGETHER: Final = 64  # groups of one file at most
TOGETHER_BYTES: Final = 16 << 20
WAITING_BYTES: Final = 1 << 30  # that may wait for the archive, or an eighth of Redis's memory
LOOK_S: Final = 2.0  # between two looks for the directory
ANSWER_S: Final = 5.0  # within which it must answer
PROMISE_MS: Final = 60_000  # how long acknowledged groups are kept for an archive that nobody has seen again
PRUNE_S: Final = 600.0
REST_S: Final = 0.5
SLOW_S: Final = 30.0  # that one file may take before people are told
FAULT_REST_S: Final = 2.0
UNREADABLE_MS: Final = 600_000  # after which a group is archived without a trajectory that cannot be read


class _Read(NamedTuple):
    """A waiting group with its trajectories. `missing`: some could not be read."""

    waiting: WaitingGroup
    group: WholeGroup
    missing: bool


class Archiving:
    """The duty's state. Threads of its own work beside the turns, so that a disk that hangs ends none."""

    def __init__(self, store: Store, shelf: Shelf) -> None:
        self._store = store
        self._shelf = shelf
        self._writer = GroupWriter(shelf)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="archive")  # one that writes, one that looks
        self._work = Tasks[str]()
        self._look_at = self._prune_at = 0.0
        self._on = self._seen = False
        self._absent_since = math.inf  # looks have answered since then that there is no directory, and never was one
        self._rest_until = 0.0
        self._writes_since = math.inf
        self._faults = {"look": "", "write": ""}
        self._told: tuple[int, int, str] | None = None

    async def turn(self) -> float:
        """Looks for the directory, says what it found, and writes what is due."""
        now_ms = await self._store.now_ms()
        if monotonic() >= self._look_at and "look" not in self._work:
            self._work.start("look", self._look())
            await self._work.wait(within_s=REST_S, of=["look"])
        if monotonic() - self._writes_since > SLOW_S:
            self._failed("write", f"{self._shelf.directory}: one file has been written for over {SLOW_S:g} s")
        await self._publish(now_ms)
        if "write" not in self._work and monotonic() >= self._rest_until:
            self._work.start("write", self._write(now_ms))
        if self._work:
            await self._work.wait(within_s=REST_S)
        return REST_S if self._on else LOOK_S

    async def aclose(self) -> None:
        """Stops. What is being written is finished, or given up, by its thread; its groups wait on."""
        await self._work.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        try:
            there = await self._in_thread(lambda: self._shelf.there, within_s=ANSWER_S)
            if there and not self._on:
                arrow(table.MISSING)
            self._seen = self._seen or there
            self._on = self._seen
            self._absent_since = math.inf if self._seen else min(self._absent_since, monotonic())
            if self._seen and not there:
                raise FileNotFoundError(f"{self._shelf.directory} is not there any more: is its file system mounted?")
        except ConfigurationError as error:
            self._on, self._seen = False, False
            self._failed("look", str(error))
        except (OSError, TimeoutError) as error:
            self._failed("look", _said(error, self._shelf))
        else:
            self._faults["look"] = ""
        self._look_at = monotonic() + LOOK_S

    async def _publish(self, now_ms: int) -> None:
        """Tells `ack` whether to keep groups, and people what is wrong; only where it has changed, or is soon over."""
        if self._told is None:  # what an earlier process has said
            before = await waiting.state(self._store)
            self._told = before.until_ms, before.most_bytes, before.fault
        until_ms, *others = self._told
        wanted = await self._room() if self._on else 0
        fresh = until_ms - now_ms > PROMISE_MS // 2 if self._on else not until_ms
        if others != [wanted, self._fault] or not fresh:
            until_ms = now_ms + PROMISE_MS if self._on else 0
            await waiting.publish(self._store, until_ms=until_ms, most_bytes=wanted, fault=self._fault)
            self._told = (until_ms, wanted, self._fault)

    async def _room(self) -> int:
        """Bytes that may wait: none where Redis has no room for new work either."""
        memory = await fitness.memory(self._store)
        if memory.share > shares.INTAKE_SHARE:
            return 0
        return min(WAITING_BYTES, memory.limit // 8) if memory.limit else WAITING_BYTES

    async def _write(self, now_ms: int) -> None:
        """Removes what is kept no longer, which makes room, and writes the groups of each run that is due."""
        store, faults = self._store, list[str]()
        try:
            if self._on and monotonic() >= self._prune_at:
                self._prune_at = monotonic() + PRUNE_S
                told = await keeping.told(store)
                await self._in_thread(lambda: keeping.prune(self._shelf, told), within_s=None)
        except (OSError, TimeoutError) as error:
            faults.append(_said(error, self._shelf))
        for run, since_ms in (await waiting.runs(store)).items():
            try:
                await self._run(run, now_ms, now_ms - since_ms)
            except (RedisError, RedisUnavailable):
                raise
            except Exception as error:  # a run that cannot be written holds up no other
                faults.append(_said(error, self._shelf))
        if faults:
            self._failed("write", faults[0])
            self._rest_until = monotonic() + FAULT_REST_S
        else:
            self._faults["write"] = ""

    async def _run(self, run: RunRef, now_ms: int, waited_ms: int) -> None:
        store = self._store
        settings = await run_settings.of_run(store, run)
        absent = (
            monotonic() - self._absent_since > PROMISE_MS / 1000
        )  # a process may start before a file system is there
        if absent or settings.archive_days == 0:
            counter = waiting.PASSED_OVER if absent else waiting.UNWANTED
            await self._let_go(run, await waiting.page(store, run, limit=TOGETHER), counter)
        if absent or settings.archive_days == 0 or not self._on:
            return
        if (await fitness.memory(store)).share > shares.ADMIT_SHARE:
            await self._let_go(run, await waiting.page(store, run, limit=TOGETHER), waiting.PASSED_OVER)
            return
        if not await self._is_due(run, waited_ms):
            return
        page = _within(await waiting.page(store, run, limit=TOGETHER))
        found = [await self._read(run, each, now_ms) for each in page]
        kept = keeping.keeping_of(settings)
        try:
            await self._put(run, found, kept, now_ms)
        except (OSError, TimeoutError, RedisError, RedisUnavailable):
            raise
        except Exception:  # it is about what one of them holds: the others are written without it
            await self._put_apart(run, found, kept, now_ms)

    async def _put(self, run: RunRef, found: Sequence[_Read], kept: Keeping, now_ms: int) -> None:
        """Writes one file, and lets go what is in it."""
        data, groups = await owner.made(self._store), [each.group for each in found]
        self._writes_since = monotonic()
        try:
            await self._in_thread(
                lambda: self._writer.write(run, groups, kept, now_ms=now_ms, data=data), within_s=None
            )
        finally:
            self._writes_since = math.inf
        await self._let_go(run, [each.waiting for each in found], waiting.ARCHIVED)
        if missing := sum(each.missing for each in found):
            await waiting.count_incomplete(self._store, missing)

    async def _put_apart(self, run: RunRef, found: Sequence[_Read], kept: Keeping, now_ms: int) -> None:
        """Writes a file for each group. One that cannot be written waits, and is passed over in the end; raises why."""
        why: ValueError | None = None
        for each in found:
            try:
                await self._put(run, [each], kept, now_ms)
            except (OSError, TimeoutError, RedisError, RedisUnavailable):
                raise
            except Exception as error:
                why = ValueError(f"group {each.group.record.group_id} of {run} cannot be archived: {error}")
                if now_ms - time_of(each.waiting.entry) >= UNREADABLE_MS:
                    await self._let_go(run, [each.waiting], waiting.PASSED_OVER)
        if why is not None:
            raise why

    async def _is_due(self, run: RunRef, waited_ms: int) -> bool:
        """A busy run's groups are gathered, so that files are few; the last ones of a run come at once."""
        if waited_ms >= GATHER_MS or await waiting.length(self._store, run) >= TOGETHER:
            return True
        return waited_ms >= IDLE_MS and await waiting.is_idle(self._store, run)

    async def _read(self, run: RunRef, each: WaitingGroup, now_ms: int) -> _Read:
        """Raises `PayloadUnavailable` for a trajectory that may be there yet."""
        record, trajectories, missing = decode(each.record, GroupRecord), dict[str, Trajectory](), False
        for sample in record.samples:
            if not sample.trajectory:
                continue
            try:
                packed = await reading.get(self._store, run, sample.trajectory)
            except PayloadUnavailable:
                if now_ms - time_of(each.entry) < UNREADABLE_MS:
                    raise
                packed = None
            if packed is None:
                missing = True
            else:
                trajectories[sample.job_id] = await unpack_trajectory(packed)
        return _Read(each, WholeGroup(record, trajectories), missing)

    async def _let_go(self, run: RunRef, page: Sequence[WaitingGroup], counter: str) -> None:
        blobs = {each.entry: results.blobs(self._store, run, decode(each.record, GroupRecord)) for each in page}
        for entry, names in blobs.items():
            await self._store.shelve(run, {entry: names}, counter)

    async def _in_thread(self, act: Callable[[], T], *, within_s: float | None) -> T:
        """Runs what waits for the disk. Raises `TimeoutError`; the thread is then still busy."""
        async with asyncio.timeout(within_s):
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    @property
    def _fault(self) -> str:
        return self._faults["look"] or self._faults["write"]

    def _failed(self, doing: str, fault: str) -> None:
        if fault != self._faults[doing]:
            log.warning("duty archive: %s; groups wait meanwhile, up to a bound", fault)
        self._faults[doing] = fault


def _within(page: Sequence[WaitingGroup]) -> list[WaitingGroup]:
    """The first groups that fit into one file, and one in any case."""
    found, size = list[WaitingGroup](), 0
    for each in page:
        size += each.bytes
        if found and size > TOGETHER_BYTES:
            break
        found.append(each)
    return found


def _said(error: Exception, shelf: Shelf) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or shelf.directory}: {error.strerror}"
    return str(error) or f"{shelf.directory} does not answer"
