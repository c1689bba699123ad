"""The log of one job's turns, as its attempt in RUN writes and reads it (`workers.agent.journal` has what is in it)."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from prorl_mq.errors import PayloadUnavailable
from prorl_mq.schema.codec import encode
from prorl_mq.schema.items import Logged
from prorl_mq.schema.turns import (
    CHECKPOINT,
    PART,
    WORLD,
    Archive,
    Checkpoint,
    Inherited,
    LogReader,
    World,
    notes,
    numbered,
)
from prorl_mq.store.payloads.checkpoints import CheckpointArchives, CheckpointSkipped
from prorl_mq.store.payloads.limits import SMALL_BYTES
from sandbox.errors import LinkCut, SandboxBusy, SandboxError, SandboxTaken
from sandbox.protocol import Sandbox, Saved
from workers import metrics
from workers.handler import LogTaken
from workers.stages.checkpoint_record import archive_of, usable
from workers.stages.log_faults import RebuildCut, RestoreFailed, SandboxAhead, lacking
from workers.stages.save_pace import SavePace
from workers.stages.work import Work

log = logging.getLogger("workers.stages.job_log")
FULL: Final = "full"  # the answer to a record that Redis has no room for
Send = Callable[[Logged], "asyncio.Future[str]"]
AGAIN_S: Final = 0.5  # after a record was refused
CONTENT_BYTES: Final = 32 << 20  # that a checkpoint is made of: about a second of CPU to save
_PATIENCE_S: Final = 1.0  # that calls wait for a save: an agent's own object may take any time to be pickled


class JobLog:
    """Implements `TurnLog`. A record that Redis has lost, with its last second, is sent again before the next one.

    `base`: turns of another job that this one begins with: no part of its own log, and there when that is forgotten.
    """

    def __init__(
        self,
        work: Work,
        send: Send,
        records: Sequence[bytes],
        archives: CheckpointArchives,
        base: Inherited | None = None,
    ) -> None:
        self._work, self._archives, self._send_on = work, archives, send
        self._records = [Logged(work.held, place, each) for place, each in enumerate(records)]
        worlds = notes(records, WORLD, World) if records else []
        points = notes(records, CHECKPOINT, Checkpoint) if records else []
        if base is not None and base.checkpoint is not None:
            points = [base.checkpoint, *points]
        self._announced: int | None = worlds[0].announced if worlds else None
        self._world = worlds[-1] if worlds else None
        self._sandbox = self._file = ""  # the file: the checkpoint's, where this attempt has written it
        self.base, self.inherited = base, base.turn + 1 if base is not None else 0
        reader = LogReader()
        self.before = list(base.records) if base is not None else []
        self.before += [record for each in records if (record := reader.turn(each)) is not None]
        self._turns = len(self.before)  # records of them
        self.under_way = None if self._turns % 2 else reader.under_way(self._turns // 2)
        self.checkpoint = points[-1] if points and usable(points[-1], self._turns) else None
        self.grew, self.rebuilds, self.acted_s = False, False, 0.0
        self.restored, self.restored_from = -1, "a checkpoint"
        self.volatile: Sequence[str] = ()  # of the task family
        self._box: Sandbox | None = None
        self._saving: asyncio.Task[None] | None = None  # the sandbox's part
        self._writing: asyncio.Task[None] | None = None  # the file system's part, which nobody waits for
        self._pace = SavePace()
        self._last: asyncio.Future[str] | None = None
        self._newest = Logged(work.held, 0, None)
        self._given_up = self.opened = False  # opened: its turns are read and written

    def begin(self, announced: int | None) -> int | None:
        """The policy version that was announced when the rollout began: now, or to an attempt before."""
        if len(self.before) <= 2 * self.inherited and not self.under_way:
            self._announced = announced
        return self._announced

    def open(self) -> None:
        if self.opened:
            told = "give log=None to run_agent, or resumes=False to ask, for all rollouts but one"
            raise LogTaken(f"a job's log is of one rollout, and this is the second one: {told}")
        self.opened = True

    @property
    def continues(self) -> bool:
        """True if a later attempt would continue where this one is."""
        return bool(self._records)

    @property
    def turn(self) -> int:
        """The newest turn that attempts before have logged; -1 without one."""
        return (len(self.before) + 1) // 2 - 1

    async def enter(self, box: Sandbox) -> None:
        """Begins in a sandbox, as the only attempt that acts there from then on. Where the log was written beside
        another sandbox, its calls are to be made again in this one.

        Raises `SandboxAhead`, `RebuildCut`, `SandboxTaken`.
        """
        self._box, self._sandbox = box, box.handle.sandbox_id
        here, world = self._sandbox, self._world
        # Turns without a word of where their calls were made were made in another sandbox: those of a fork, mostly.
        self.rebuilds = bool(self.before) if world is None else world.sandbox != here or not world.whole
        # A Redis that has lost its last second may give one entry to two workers, and to neither as a later attempt.
        claim, mine = self._work.claim, f"{self._work.held.token} {secrets.token_hex(8)}"
        fenced = await box.fence(claim.attempts + claim.deaths + claim.releases, mine)
        self.acted_s = max(0.0, fenced.seconds) if fenced.turn == self.turn else 0.0
        if self.rebuilds and (fenced.turn >= 0 or (world is not None and world.sandbox == here)):
            raise RebuildCut(f"sandbox {here} has a part of the rollout's calls: making them again was cut short")
        if self.rebuilds:
            await self._add(self._here(whole=False), wait=True)
        if fenced.turn > self.turn:
            raise SandboxAhead(
                f"sandbox {here} has begun calls of turn {fenced.turn}, and the log ends with turn {self.turn}"
            )

    async def restore(self, saved: bytes, file: str = "") -> None:
        """Puts a new sandbox into the state of the checkpoint. Where its file is not to be had, the time line says so,
        and all calls are to be made again. Raises `RestoreFailed`.
        """
        box, point = self._box, self.checkpoint
        assert box is not None
        assert point is not None
        try:
            if point.digest:
                await box.restore(await self._data(saved, file, point))
        except (SandboxTaken, SandboxBusy, LinkCut):
            raise  # that says nothing of the checkpoint
        except SandboxError as error:  # also a sandbox that died of it, and would do so each time
            await self._useless()
            raise RestoreFailed(str(error)) from error
        except PayloadUnavailable as error:
            await self._useless(f"the checkpoint of turn {point.turn} is not used: {error}")
            return
        self.restored = point.turn

    async def _data(self, saved: bytes, file: str, point: Checkpoint) -> bytes:
        """The archive of a checkpoint. Raises `CannotRestore` where there is another one, or none."""
        archive = archive_of(point, saved)
        if archive.data or not file:  # a worker of a release without files leaves the name of an older one
            return archive.data
        return await self._archives.get(self._work.held.ref, file)

    async def _useless(self, detail: str = "") -> None:
        self.checkpoint = None
        await self._add(CHECKPOINT + encode(Checkpoint(-1, "")), wait=True, detail=detail)

    async def rebuilt(self) -> None:
        self.rebuilds = False
        known = f", those up to turn {self.restored} from {self.restored_from}" if self.restored >= 0 else ""
        await self._add(self._here(whole=True), wait=True, detail=f"sandbox {self._sandbox} has all calls again{known}")

    def rests(self, turn: int) -> None:
        writes = self._writing is not None and not self._writing.done()
        due = self._pace.due(asyncio.get_running_loop().time())
        if self._box is not None and self._records and due and not writes:
            self._saving = asyncio.create_task(self._save(self._box, turn))

    async def acts(self) -> None:
        if self._saving is not None:
            _, late = await asyncio.wait({self._saving}, timeout=_PATIENCE_S)
            if late:
                metrics.unsaved.inc()
                self._saving.cancel()
                await asyncio.wait({self._saving})
            self._saving = None
        self._pace.acts(asyncio.get_running_loop().time())

    async def border(self) -> None:
        left = self._work.left
        if not left.asked or not self._records:
            return
        await self._kept()
        if self.rebuilds:
            await self.rebuilt()
        turn = self._turns // 2 - 1  # the last one with results
        if self._box is not None and (self.checkpoint is None or self.checkpoint.turn < turn):
            await self._save(self._box, turn)
            await self._kept()
        await self._logged()
        if left.asked and self._records:
            left.rest()
            await asyncio.Event().wait()

    async def _kept(self) -> None:
        """Returns when what is being saved is in the log. What bounds it is the time that its worker has to leave."""
        while busy := {task for task in (self._saving, self._writing) if task is not None and not task.done()}:
            await asyncio.wait(busy)
        self._saving = self._writing = None

    @property
    def saving(self) -> bool:
        """True where something of it may still be at work in the sandbox."""
        return self._saving is not None or self._writing is not None

    async def close(self) -> None:
        """Ends what it does in the sandbox."""
        for task in filter(None, (self._saving, self._writing)):
            task.cancel()
            await asyncio.wait({task})
        self._saving = self._writing = None

    def ended(self) -> None:
        """Says that no later attempt needs the checkpoint."""
        self._archives.let_go(self._work.held.ref, self._file)
        self._file = ""

    async def _save(self, box: Sandbox, turn: int) -> None:
        """Keeps the sandbox's state if all of it can be restored. Else an earlier one stays, and later calls are made
        again.
        """
        clock = asyncio.get_running_loop().time
        began, size, changed = clock(), 0, True
        known = self.checkpoint.digest if self.checkpoint else ""
        try:
            saved = await box.save(max_bytes=CONTENT_BYTES, known=known)
        except SandboxError as error:
            log.info("job=%s: its sandbox was not saved: %s", self._work.held.ref, error)
            metrics.unsaved.inc()
            return
        else:
            size = len(saved.data or b"")
            changed = bool(saved.lost or saved.too_large or size or saved.digest != known)
        finally:
            self._pace.saved(began, clock(), size, changed=changed)
        kept = size or saved.digest in {"", known}  # else it is one that was not kept the last time
        if saved.lost or saved.too_large or not kept:
            metrics.unsaved.inc()
        elif size <= SMALL_BYTES:
            await self._keep(saved, turn)
        else:
            self._writing = asyncio.create_task(self._keep(saved, turn))

    async def _keep(self, saved: Saved, turn: int) -> None:
        """Notes a checkpoint once its archive may be named. The file that it replaces goes when Redis has the note."""
        archive, file, archives = b"", self._file, self._archives
        if saved.data:
            try:
                kept = await archives.put(self._work.held.ref, saved.data)
            except CheckpointSkipped as error:
                log.info(
                    "job=%s: a checkpoint of %d bytes was not kept: %s", self._work.held.ref, len(saved.data), error
                )
                metrics.unsaved.inc()
                return
            archive, file = encode(Archive(saved.digest, kept.data)), kept.file
            metrics.checkpoint_bytes.labels("file" if file else "redis").inc(len(saved.data))
        if self._given_up:
            metrics.unsaved.inc()
            return
        point = Checkpoint(turn, saved.digest)
        noted = await self._add(CHECKPOINT + encode(point), wait=False, saved=archive, saved_in=file)
        self.checkpoint = point
        before, self._file = self._file, file
        if file != before and await asyncio.shield(noted) == "logged":
            archives.let_go(self._work.held.ref, before)

    async def append(self, record: bytes, *, wait: bool) -> None:
        if self._given_up:
            return
        self.grew = True
        await self._begin()
        self._turns += 1
        await self._add(numbered(self._turns - 1, record), wait=wait)

    @property
    def leaves(self) -> bool:
        return self._work.left.leaves

    async def part(self, record: bytes, *, wait: bool = False) -> None:
        await self._begin()
        if lacking(self._last):
            await self._logged()
        await self._add(PART + record, wait=wait)

    async def note(self, text: str) -> None:
        await self._begin()
        await self._add(self._here(whole=not self.rebuilds), wait=False, detail=text)

    async def keep_file(self, data: bytes) -> str:
        await self._work.hold()
        return await self._archives.put_routes(self._work.held.ref, data)

    async def kept_file(self, name: str) -> bytes | None:
        return await self._archives.routes(self._work.held.ref, name)

    async def _begin(self) -> None:
        if not self._records:
            await self._add(self._here(whole=True), wait=False)

    def _here(self, *, whole: bool) -> bytes:
        return WORLD + encode(World(self._announced, self._sandbox, whole))

    async def _add(
        self, record: bytes, *, wait: bool, saved: bytes = b"", detail: str = "", saved_in: str = ""
    ) -> "asyncio.Future[str]":
        await self._work.hold()
        if self._given_up and self._last is not None:  # nothing comes behind that
            return self._last
        self._records.append(Logged(self._work.held, len(self._records), record, saved, detail, saved_in))
        sent = self._send(self._records[-1])
        if wait:
            await self._logged()
        return sent

    def _send(self, record: Logged) -> "asyncio.Future[str]":
        self._newest = record
        self._last = sent = self._send_on(record)
        return sent

    async def _logged(self) -> None:
        """Returns when all records are in Redis, or the log was given up. Where the job is another's, or is to stop,
        its task is cancelled before that. Where Redis has lost the claim, the heartbeat takes the lease again.
        """
        while self._last is not None:
            answer = await asyncio.shield(self._last)
            if answer in {"logged", "already"}:
                return
            if answer == "dropped":
                self._dropped()
                return
            if answer == FULL:
                self._given_up = True
                self._send(Logged(self._work.held, 0, None))
            elif answer.isdecimal():
                for record in self._records[int(answer) :]:
                    self._send(record)
            else:
                log.info("job=%s: its log takes no record now (%s)", self._work.held.ref, answer)
                await asyncio.sleep(AGAIN_S)
                self._send(self._newest)

    def _dropped(self) -> None:
        ref = self._work.held.ref
        log.warning("job=%s continues unlogged, for Redis is too full: if its worker dies, it starts again", ref)
        metrics.unlogged.inc()
        self._records.clear()
        self.ended()
