"""The log of one job's turns, as its attempt in RUN writes and reads it (`workers.agent.journal` has what is in it)."""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.items import Logged
from sandbox.protocol import Sandbox
from workers import metrics
from workers.handler import LogTaken
from workers.stages.work import Work

log = logging.getLogger("workers.stages.job_log")
FULL: Final = "full"  # the answer to a record that Redis has no room for
AGAIN_S: Final = 0.5  # after a record was refused
_VERSION: Final = struct.Struct("!q")
Send = Callable[[Logged], "asyncio.Future[str]"]


class SandboxAhead(Exception):
    """A sandbox has begun calls that the log does not know, as when Redis has lost its last second."""

    retryable = True
    cause = Cause.WORKER


class JobLog:
    """Implements `TurnLog`. A record that Redis has lost, with its last second, is sent again before the next one.

    In front of the first record is the policy version that was announced when the rollout began, or -1.
    """

    def __init__(self, work: Work, send: Send, records: Sequence[bytes]) -> None:
        self._work = work
        self._send_on = send
        self._records = list(records)
        self._announced = _VERSION.unpack_from(records[0])[0] if records else -1
        self.before = [records[0][_VERSION.size :], *records[1:]] if records else []
        self._last: asyncio.Future[str] | None = None
        self._newest: tuple[int, bytes | None] = (0, None)
        self._given_up = self._open = False

    def begin(self, announced: int | None) -> int | None:
        """The policy version that was announced when the rollout began: now, or to an attempt before."""
        if not self.before:
            self._announced = -1 if announced is None else announced
        return None if self._announced < 0 else self._announced

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

    async def take_over(self, box: Sandbox) -> None:
        """Makes this attempt the only one that acts in the sandbox. Raises `SandboxAhead`, `SandboxTaken`."""
        claim = self._work.claim
        fenced = await box.fence(claim.attempts + claim.deaths + claim.releases, self._work.held.token)
        if fenced.turn > self.turn:
            raise SandboxAhead(
                f"sandbox {box.handle.sandbox_id} has begun calls of turn {fenced.turn}, and the log ends with turn "
                f"{self.turn}"
            )

    async def append(self, record: bytes, *, wait: bool) -> None:
        if self._given_up:
            return
        await self._work.hold()
        if not self._records:
            record = _VERSION.pack(self._announced) + record
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
