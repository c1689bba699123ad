"""The turns of a rollout as its log keeps them, and how an attempt continues where another one ended.

Two records a turn: what was sampled, logged before the first call of the turn is sent, and what its calls answered. A
later attempt runs the same loop over them: what was sampled is not sampled again, and what was answered is not asked
again. So the rollout is the one that it was, bit by bit, or it is refused (`LogDiffers`) and starts again.

In a new sandbox, the calls of the attempts before are made again first. What they answer there is compared with the
log, whose words stay: they are what the policy has read.
"""

import asyncio
import hashlib
import logging
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec

from prorl_mq.schema.codec import compress, encode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.turns import (
    BEHIND_PARTS,
    SCHEMA,
    CallResult,
    LoggedCompletion,
    LoggedPart,
    RecordUnreadable,
    TurnResults,
    pack_tokens,
    read_record,
    unpack_tokens,
)
from workers.agent.alike import alike
from workers.agent.calls import Call
from workers.agent.hermes import Message
from workers.agent.pictures.messages import logged, unlogged
from workers.agent.tokens import TokenRecord
from workers.handler import TurnLog
from workers.inference.arrived import Arrived
from workers.inference.protocol import Completion
from workers.inference.routes import with_logged

log: Final = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
PART_S: Final = 5.0  # between two parts of a completion: what a kill costs of it at most
REST_S: Final = 3.0  # that a worker which gives a job back has for the rest of them
PART_TOKENS: Final = 8192  # of one part; more of them come with the next one
NOTHING: Final = Completion(ids=[], logprobs=[], finish_reason="abort", backend="")  # has arrived


class Since(msgspec.Struct, frozen=True):
    """A completion that is being sampled: of which turn, since when, for which messages, with what used of RUN's budget
    by now.
    """

    turn: int
    started_s: float  # after the start of the rollout
    compacted: Sequence[Message] | None
    used_s: Callable[[], float]


class LogDiffers(Exception):
    """A rollout differs from the log of its turns, so that it starts again."""

    retryable = True
    forgets_log = True
    cause = Cause.WORKER


class PastTurn(msgspec.Struct, frozen=True):
    """A turn of an attempt before. Without `results` it ended within this turn's calls."""

    completion: Completion
    prompt: tuple[int, bytes]  # its length, and the digest of what it had beyond the one before
    started_s: float
    compacted: Sequence[Message] | None
    results: TurnResults | None
    routes: str = ""  # the name of the file with the completion's


class Journal:
    """Reads the turns of attempts before, then writes its own. Without a log it does neither."""

    def __init__(self, log: TurnLog | None) -> None:
        self._log = log
        self.images: Sequence[PromptImage] = ()  # that the rollout began with: records name them by number
        if log is not None:
            log.open()
        self._before: Sequence[bytes] = log.before if log is not None else ()
        self._read = self._written = 0  # records
        self._known = (0, 0)  # the segment, and its length that digests have covered
        self._prompt = (0, b"")
        self._cut = log.under_way if log is not None else None  # the completion that the attempt before was cut in
        self._parts: tuple[list[int], list[float]] = [], []  # tokens of the completion under way that are logged
        self._unable = self._told = ""  # why a turn would start again if it were cut
        self.used_s = self.elapsed_s = 0.0  # when the last record was logged, and in the calls behind it
        if self._before or self._cut:
            self._look_back()

    @property
    def inherited(self) -> int:
        """Turns that another job has sampled."""
        return self._log.inherited if self._log is not None else 0

    @property
    def keeps(self) -> bool:
        """True if the rollout has a log."""
        return self._log is not None

    def alike(self, past: CallResult, again: CallResult, call: Call) -> bool:
        """True if a call that was made again answers alike, but for what its family declares volatile."""
        asked = " ".join(map(str, call.arguments.values()))
        return alike(past, again, asked, self._log.volatile if self._log is not None else ())

    def rebuilds(self, turn: int) -> bool:
        """True if the calls of this turn are to be made again, in a new sandbox."""
        return self._log is not None and self._log.rebuilds and turn > self._log.restored

    async def acts(self, past: "PastTurn | None", beyond: Sequence[str] = ()) -> None:
        """Returns once calls may act: in front of the first one that is new, it notes that all before are made.
        `beyond`: tools of this turn that act beyond the sandbox.

        Raises `LogDiffers` where such a call was under way when the sandbox was lost: nobody knows if it has acted.
        """
        if self._log is None:
            return
        await self._log.acts()
        if self._log.rebuilds and (past is None or past.results is None):
            if past is not None and beyond:
                raise LogDiffers(f"{beyond[0]} was under way when its sandbox was lost, and reaches beyond it")
            await self._log.rebuilt()

    @property
    def reading(self) -> bool:
        """True while turns of attempts before are left."""
        return self._read < len(self._before)

    def ended(self) -> None:
        """Raises `LogDiffers` if the attempts before went further."""
        if self.reading:
            raise LogDiffers(f"{len(self._before) - self._read} records of its turns lie behind its end")

    async def turn(self) -> PastTurn | None:
        """The next turn of the attempts before; None where a new one is to be sampled, and may be."""
        past = self.past()
        if self._log is None:
            return past
        if past is None:
            await self._log.border()
        elif past.routes:
            found = await self._log.kept_file(past.routes)
            return msgspec.structs.replace(past, completion=with_logged(past.completion, found))
        return past

    def begun(self) -> PastTurn | None:
        """The completion that an attempt before was cut in, as far as it had come; None without one, and once asked."""
        cut, self._cut = self._cut, None
        return None if cut is None else _past(_decoded(cut, LoggedCompletion), None, self.images)

    def past(self) -> PastTurn | None:
        """The next turn of the attempts before; None once there are no more. Raises `LogDiffers` for an ill record."""
        if not self.reading:
            return None
        read = _decoded(self._before[self._read], LoggedCompletion)
        if read.schema != SCHEMA:
            raise LogDiffers(f"its turns were logged in form {read.schema}; this worker reads form {SCHEMA}")
        self._read += 1
        results = _decoded(self._before[self._read], TurnResults) if self.reading else None
        self._read += results is not None
        return _past(read, results, self.images)

    def prompted(self, record: TokenRecord, past: PastTurn | None) -> None:
        """Notes the prompt of a completion. Raises `LogDiffers` if a past turn was sampled for another one."""
        if self._log is None:
            return
        segment, known = self._known
        added = array("I", record.context[known if segment == record.segment else 0 :])
        self._known = (record.segment, len(record.context))
        self._prompt = (len(record.context), hashlib.blake2b(added.tobytes(), digest_size=8).digest())
        if past is not None and past.prompt != self._prompt:
            turn = f"turn {record.turns} was logged for a prompt of {past.prompt[0]} tokens"
            raise LogDiffers(f"{turn}; made again it is another one, of {len(record.context)} tokens")

    async def sampled(
        self,
        completion: Completion,
        compacted: Sequence[Message] | None,
        *,
        started_s: float,
        used_s: float,
        follows: bool,
    ) -> None:
        """Logs a completion, behind its prompt. On return it is logged where anything follows it; that of a rollout's
        only turn is not.
        """
        if self._log is None:
            return
        if self._unable and not self._told:
            await self._log.note(self._unable)
            self._told = self._unable
        behind, self._parts = self._kept(completion), ([], [])
        if follows or self._written or self._before or behind:
            made = self._logged(completion, compacted, behind, started_s=started_s, used_s=used_s)
            if completion.routes is not None:
                made = msgspec.structs.replace(made, routes=await self._log.keep_file(encode(completion.routes)))
            self._written += 1
            await self._log.append(compress(encode(made)), wait=follows)

    @asynccontextmanager
    async def arriving(self, begun: PastTurn | None, since: Since) -> AsyncIterator[Arrived]:
        """Collects the tokens of a completion, behind those that an attempt before had. Meanwhile they are logged
        in parts, so that a later attempt may continue from them: also the rest of them where its worker gives the job
        back.
        """
        arrived = Arrived(begun.completion if begun is not None else None)
        arrived.unable = self._cannot
        self._parts = (list(begun.completion.ids), list(begun.completion.logprobs)) if begun is not None else ([], [])
        noting = asyncio.create_task(self._log_parts(arrived, since))
        try:
            try:
                yield arrived
            finally:
                noting.cancel()
                await asyncio.wait({noting})
        except asyncio.CancelledError:
            await self._log_rest(arrived, since)
            raise
        if not noting.cancelled():
            noting.result()

    def _cannot(self, why: str) -> None:
        self._unable = f"a turn that is cut starts again: {why}"

    async def _log_parts(self, arrived: Arrived, since: Since) -> None:
        while self._log is not None:
            await asyncio.sleep(PART_S)
            await self._log_part(self._log, arrived, since)

    async def _log_rest(self, arrived: Arrived, since: Since) -> None:
        """Logs what is left of them where the job is given back. Redis may be away: then there is not much time. What
        cannot be logged is sampled again, and is no failure: the job is given back all the same.
        """
        if self._log is None or not self._log.leaves:
            return
        try:
            async with asyncio.timeout(REST_S):
                while await self._log_part(self._log, arrived, since, wait=True):
                    pass
        except Exception as error:
            log.info("tokens of turn %d are not logged: %s", since.turn, error or type(error).__name__)

    async def _log_part(self, log: TurnLog, arrived: Arrived, since: Since, *, wait: bool = False) -> bool:
        """True if there was anything to log."""
        now = await arrived.so_far() or NOTHING
        start = self._kept(now)
        end = min(len(now.ids), start + PART_TOKENS)
        if end == start >= len(self._parts[0]):
            return False
        # An empty part where nothing of them holds any more.
        about = self._logged(now, since.compacted, start, started_s=since.started_s, used_s=since.used_s())
        ids, logprobs = pack_tokens(now.ids[start:end], now.logprobs[start:end])
        about = msgspec.structs.replace(about, ids=ids, logprobs=logprobs)
        await log.part(compress(encode(LoggedPart(since.turn, start, about))), wait=wait)
        self._parts = list(now.ids[:end]), list(now.logprobs[:end])
        return True

    def _kept(self, completion: Completion) -> int:
        """The number of its tokens that are logged in parts; 0 where it was sampled again since."""
        ids, logprobs = self._parts
        known = len(ids)
        return known if completion.ids[:known] == ids and completion.logprobs[:known] == logprobs else 0

    def _logged(
        self,
        completion: Completion,
        compacted: Sequence[Message] | None,
        behind: int,
        *,
        started_s: float,
        used_s: float,
    ) -> LoggedCompletion:
        return LoggedCompletion(
            BEHIND_PARTS if behind else SCHEMA,
            *self._prompt,
            *pack_tokens(completion.ids[behind:], completion.logprobs[behind:]),
            completion.finish_reason,
            completion.stop_token,
            completion.backend,
            completion.version,
            completion.spans,
            completion.cached_tokens,
            completion.seconds,
            started_s,
            used_s,
            None if compacted is None else logged(compacted, self.images),
            behind,
        )

    async def answered(self, results: TurnResults, turn: int) -> None:
        """Logs what followed the completion of a turn. The next one waits for it, and the sandbox may be saved."""
        if self._log is not None:
            self._written += 1
            await self._log.append(compress(encode(results)), wait=False)
            if any(not call.refused for call in results.calls):
                self._log.rests(turn)

    def _look_back(self) -> None:
        last = self._cut or self._before[-1]
        if self._cut is not None or len(self._before) % 2:
            sampled = _decoded(last, LoggedCompletion)
            acted_s = self._log.acted_s if self._log is not None and self._cut is None else 0.0
            self.used_s, self.elapsed_s = sampled.used_s + acted_s, sampled.started_s + sampled.seconds + acted_s
        else:
            results = _decoded(last, TurnResults)
            self.used_s, self.elapsed_s = results.used_s, results.elapsed_s


def _past(read: LoggedCompletion, results: TurnResults | None, images: Sequence[PromptImage]) -> PastTurn:
    compacted = None if read.compacted is None else unlogged(read.compacted, images)
    return PastTurn(_completion(read), (read.sent, read.added), read.started_s, compacted, results, read.routes)


def _completion(read: LoggedCompletion) -> Completion:
    ids, logprobs = unpack_tokens(read)
    return Completion(
        ids=ids,
        logprobs=logprobs,
        finish_reason=read.finish_reason,
        stop_token=read.stop_token,
        backend=read.backend,
        version=read.version,
        spans=read.spans,
        cached_tokens=read.cached_tokens,
        seconds=read.seconds,
    )


def _decoded(record: bytes, kind: type[T]) -> T:
    try:
        return read_record(record, kind)
    except RecordUnreadable as error:
        raise LogDiffers(str(error)) from error
