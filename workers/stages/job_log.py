"""The log of one job's turns, as its attempt in RUN writes and reads it (`workers.agent.journal` has what is in it)."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.items import Logged
from prorl_mq.schema.turns import TURN, WORLD, World
from sandbox.protocol import Sandbox
from workers import metrics
from workers.handler import LogTaken
from workers.stages.work import Work

log = logging.getLogger("workers.stages.job_log")
FULL: Final = "full"  # the answer to a record that Redis has no room for
Send = Callable[[Logged], "asyncio.Future[str]"]
AGAIN_S: Final = 0.5  # after a record was refused


class SandboxAhead(Exception):
    """A sandbox has begun calls that the log does not know, as when Redis has lost its last second."""

    retryable = True
    forgets_log = False
    cause = Cause.WORKER


class RebuildCut(Exception):
    """A sandbox has a part of the rollout's calls: the attempt that made them again has ended within them."""

    retryable = True
    forgets_log = False
    cause = Cause.WORKER


class JobLog:
    """Implements `TurnLog`. A record that Redis has lost, with its last second, is sent again before the next one."""

    def __init__(self, work: Work, send: Send, records: Sequence[bytes]) -> None:
        self._work = work
        self._send_on = send
        self._records = list(records)
        worlds = [decode(each[1:], World) for each in records if each[:1] == WORLD]
        self._announced = worlds[0].announced if worlds else None
        self._sandbox = worlds[-1].sandbox if worlds else ""
        self.before = [each[1:] for each in records if each[:1] == TURN]
        self.grew = self.rebuilds = False
        self._last: asyncio.Future[str] | None = None
        self._newest: tuple[int, bytes | None] = (0, None)
        self._given_up = self._open = False

    def begin(self, announced: int | None) -> int | None:
        """The policy version that was announced when the rollout began: now, or to an attempt before."""
        if not self.before:
            self._announced = announced
        return self._announced

    def open(self) -> None:
        if self._open:
            told = "give log=None to run_agent, or resumes=False to ask, for all rollouts but one"
            raise LogTaken(f"a job's log is of one rollout, and this is the second one: {told}")
        self._open = True

    @property
    def continues(self) -> bool:
        """True if a later attempt would continue where this one is."""
        return bool(self._records)

    @property
    def turn(self) -> int:
        """The newest turn that attempts before have logged; -1 without one."""
        return (len(self.before) + 1) // 2 - 1

    async def enter(self, box: Sandbox, *, follows: bool) -> None:
        """Begins in a sandbox. One that `follows` another attempt is the only one that acts there from then on. Where
        the log was written beside another sandbox, its calls are to be made again in this one.

        Raises `SandboxAhead`, `RebuildCut`, `SandboxTaken`.
        """
        here = box.handle.sandbox_id
        self.rebuilds = bool(self.before) and self._sandbox != here
        self._sandbox = here
        if not follows:
            return
        claim = self._work.claim
        fenced = await box.fence(claim.attempts + claim.deaths + claim.releases, self._work.held.token)
        if self.rebuilds and fenced.turn >= 0:
            raise RebuildCut(f"sandbox {here} has the rollout's calls in part, up to some of turn {fenced.turn}")
        if fenced.turn > self.turn:
            raise SandboxAhead(
                f"sandbox {here} has begun calls of turn {fenced.turn}, and the log ends with turn {self.turn}"
            )

    async def rebuilt(self) -> None:
        self.rebuilds = False
        await self._add(self._world(), wait=True)

    async def append(self, record: bytes, *, wait: bool) -> None:
        if self._given_up:
            return
        self.grew = True
        if not self._records:
            await self._add(self._world(), wait=False)
        await self._add(TURN + record, wait=wait)

    def _world(self) -> bytes:
        return WORLD + encode(World(self._announced, self._sandbox))

    async def _add(self, record: bytes, *, wait: bool) -> None:
        await self._work.hold()
        self._send(len(self._records), record)
        self._records.append(record)
        if wait:
            await self._logged()

    def _send(self, place: int, record: bytes | None) -> None:
        self._newest = place, record
        self._last = self._send_on(Logged(self._work.held, place, record))

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
                self._send(0, None)
            elif answer.isdecimal():
                for place in range(int(answer), len(self._records)):
                    self._send(place, self._records[place])
            else:
                log.info("job=%s: its log takes no record now (%s)", self._work.held.ref, answer)
                await asyncio.sleep(AGAIN_S)
                self._send(*self._newest)

    def _dropped(self) -> None:
        ref = self._work.held.ref
        log.warning("job=%s continues unlogged, for Redis is too full: if its worker dies, it starts again", ref)
        metrics.unlogged.inc()
        self._records.clear()
