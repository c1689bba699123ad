"""Turns of a rollout: as its log in Redis holds them, and as callers see them while it is under way.

A log has two records a turn: what was sampled, logged before the first call of the turn is sent, and what its calls
answered. In front of them, and wherever the rollout has continued in a new sandbox, is a record of that (`World`), and
between them are notes of checkpoints, and parts of completions that are being sampled. The first byte of a record says
which it is; those of turns are numbered.
"""

import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from prorl_mq.schema.codec import compress, encode, expand

SCHEMA: Final = 1
BEHIND_PARTS: Final = 2  # the schema of a completion whose first tokens are in the parts in front of it
TURN, WORLD, CHECKPOINT, PART = b"t", b"w", b"c", b"p"
_NUMBER: Final = 4  # bytes
_RECORD_BYTES: Final = 64 << 20  # of one, unfolded: more than any turn may have
T = TypeVar("T", bound=msgspec.Struct)


class RecordUnreadable(Exception):
    """A record of a log of turns cannot be read."""


class World(msgspec.Struct, frozen=True, array_like=True):
    """The sandbox that the calls are made in from here on. The first record is one. Each new sandbox gets two: before
    the calls of attempts before are made again in it, and after that.
    """

    announced: int | None  # the policy version that was announced when the rollout began
    sandbox: str  # its id; empty without one
    whole: bool = True  # it has all calls that are logged in front of this


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A note that the state of the sandbox behind a turn is saved."""

    turn: int  # the last one whose calls it has; -1: what was saved before is of no use
    digest: str  # of the archive; empty: nothing differs from what INIT has made


class Archive(msgspec.Struct, frozen=True, array_like=True):
    """The saved state beside the log. Where Redis has lost a tail, it may be another one than the log's newest."""

    digest: str
    data: bytes


class Inherited(msgspec.Struct, frozen=True, array_like=True):
    """The turns that the jobs of a forked group begin with. They are trained where they were sampled, so the
    log-probabilities in them are 0, and nobody is named who sampled them.
    """

    schema: int
    job: str  # that has sampled them, as run:group:index
    turn: int  # the last of them
    records: Sequence[bytes]  # two of each, without their numbers
    checkpoint: Checkpoint | None  # of the sandbox behind one of them; None: all calls are to be made again
    sandbox: str = ""  # the id of the one that they were made in, which may live; empty: it does not, or has not all


class CompletionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `[start, end)` of a completion, by one backend. The rest is as in `prorl_mq.schema.trajectory.Span`."""

    start: int
    end: int
    backend: str
    version: tuple[str, str] | None = None
    raw_logprobs: bool = False


class LoggedCompletion(msgspec.Struct, frozen=True, array_like=True):
    """One completion. `ids` and `logprobs` are packed: 4 bytes each, or 8 where a log-probability needs them."""

    schema: int
    sent: int  # tokens of the prompt
    added: bytes  # digest of what it had beyond the one before
    ids: bytes
    logprobs: bytes
    finish_reason: str
    stop_token: int | None
    backend: str
    version: tuple[str, str] | None
    spans: Sequence[CompletionSpan]
    cached_tokens: int | None
    seconds: float
    started_s: float  # after the start of the rollout
    used_s: float  # of RUN's budget
    compacted: Sequence[Mapping[str, str]] | None  # the messages of the prompt, where the family shortened them
    behind: int = 0  # tokens that are in the parts in front of it, and not in `ids`
    routes: str = ""  # the name of the file with the routes that came with it


class LoggedPart(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a completion that is being sampled, from number `start` on. Without any, those from there on are not
    used: their stream has turned out to lack some.
    """

    turn: int
    start: int
    about: LoggedCompletion  # of all tokens so far, but for `ids` and `logprobs`: these are the part's


class CallResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one call of a turn."""

    text: str
    ok: bool
    refused: bool
    seconds: float
    image: str = ""  # the name of the file with the image that it shows


class TurnResults(msgspec.Struct, frozen=True, array_like=True):
    """The results of a turn. `reply`: of the environment, where no tool was called."""

    calls: Sequence[CallResult]
    reply: str | None
    used_s: float  # of RUN's budget
    elapsed_s: float  # since the start of the rollout


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one call of a turn. What was called is in the turn's tokens."""

    result: str
    ok: bool
    refused: bool
    seconds: float


class LoggedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `ids` and `logprobs` are those of its completion, bit for bit as the backend sent them."""

    number: int
    prompt_tokens: int  # all that was sent
    cached_tokens: int | None
    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
    stop_token: int | None
    spans: Sequence[CompletionSpan]  # which backend sampled what, and on which policy version
    llm_seconds: float
    started_seconds: float  # after the start of the rollout
    calls: Sequence[LoggedCall] = ()
    reply: str = ""  # what an environment said to a turn that called no tool
    text: str = ""  # of its tokens, over HTTP, where the API process has the policy's vocabulary


class LoggedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Finished turns of a job from the one that was asked for on.

    `next` is where the following page begins. Where `rollout` is not that of the page before, the job has begun
    another rollout, whose turns begin with 0.
    """

    job_id: str
    rollout: str  # empty while none is known: there is no turn yet, or the log was given up
    turns: Sequence[LoggedTurn]
    under_way: LoggedTurn | None  # behind them all: its completion is there, and not all that its calls answer
    next: int
    complete: bool  # no turn follows those of this page
    note: str  # why there are none


def numbered(number: int, record: bytes) -> bytes:
    """A record of a turn, as it is logged: the first one of turn k is number 2k."""
    return TURN + number.to_bytes(_NUMBER, "big") + record


def turn_record(logged: bytes) -> tuple[int, bytes | None]:
    """The number of a record, and the record; -1 and None for one that is of no turn."""
    if logged[:1] != TURN:
        return -1, None
    return int.from_bytes(logged[1 : 1 + _NUMBER], "big"), logged[1 + _NUMBER :]


class LogReader:
    """Reads the records of a log in their order, and puts completions together that were logged in parts."""

    def __init__(self, first: int = 0) -> None:
        self._first = first  # the number of the first record of a turn that is wanted
        self._part: LoggedPart | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []

    def turn(self, logged: bytes) -> bytes | None:
        """The record of a turn, with all tokens; None for one that is of no turn, or of one that is not wanted. Raises
        `RecordUnreadable`.
        """
        if logged[:1] == PART:
            self._add(read_record(logged[1:], LoggedPart))
            return None
        number, record = turn_record(logged)
        if record is None:
            return None
        whole = record if number < self._first or self._part is None else self._whole(record, number)
        self._part, self._ids, self._logprobs = None, [], []
        return whole if number >= self._first else None

    def under_way(self, turn: int) -> bytes | None:
        """The tokens of a completion that was not logged to its end, as a record of one that was aborted."""
        part = self._part
        if part is None or part.turn != turn or not self._ids:
            return None
        end = len(self._ids)
        spans = [msgspec.structs.replace(span, end=min(span.end, end)) for span in part.about.spans if span.start < end]
        return self._packed(msgspec.structs.replace(part.about, spans=spans))

    def _add(self, part: LoggedPart) -> None:
        """One that begins within what there is takes the place of the rest. One behind a gap is of no use."""
        if self._part is None or self._part.turn != part.turn or part.start > len(self._ids):
            self._ids, self._logprobs = [], []
        if part.start <= len(self._ids):
            ids, logprobs = unpack_tokens(part.about)
            self._ids, self._logprobs = [*self._ids[: part.start], *ids], [*self._logprobs[: part.start], *logprobs]
        self._part = part

    def _whole(self, record: bytes, number: int) -> bytes:
        if number % 2:
            return record
        read = read_record(record, LoggedCompletion)
        if not read.behind:
            return record
        if self._part is None or self._part.turn != number // 2 or len(self._ids) < read.behind:
            raise RecordUnreadable(f"turn {number // 2} lacks some of the {read.behind} tokens that it had in parts")
        ids, logprobs = unpack_tokens(read)
        self._ids, self._logprobs = [*self._ids[: read.behind], *ids], [*self._logprobs[: read.behind], *logprobs]
        return self._packed(read)

    def _packed(self, about: LoggedCompletion) -> bytes:
        ids, logprobs = pack_tokens(self._ids, self._logprobs)
        whole = msgspec.structs.replace(about, schema=SCHEMA, ids=ids, logprobs=logprobs, behind=0)
        return compress(encode(whole))


def notes(records: Sequence[bytes], mark: bytes, kind: type[T]) -> list[T]:
    """The records of a log that begin with a mark. Raises `RecordUnreadable`."""
    try:
        return [msgspec.msgpack.decode(each[1:], type=kind) for each in records if each[:1] == mark]
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"a note of {kind.__name__} in the log cannot be read: {error}") from error


def read_record(record: bytes, kind: type[T]) -> T:
    """A record of a turn, without its first byte. Raises `RecordUnreadable`."""
    try:
        return msgspec.msgpack.decode(expand(record, most_bytes=_RECORD_BYTES), type=kind)
    except (ValueError, msgspec.MsgspecError, zlib.error) as error:
        raise RecordUnreadable(f"a record of its turns cannot be read: {error}") from error


def pack_tokens(ids: Sequence[int], logprobs: Sequence[float]) -> tuple[bytes, bytes]:
    """Ids and log-probabilities as `LoggedCompletion` has them."""
    narrow = array("f", logprobs)
    exact = narrow.tolist() == list(logprobs)
    return array("I", ids).tobytes(), (narrow if exact else array("d", logprobs)).tobytes()


def unpack_tokens(read: LoggedCompletion) -> tuple[list[int], list[float]]:
    """The inverse of `pack_tokens`. Raises `RecordUnreadable`."""
    try:
        ids, logprobs = array("I", read.ids), array("f" if len(read.logprobs) == len(read.ids) else "d", read.logprobs)
    except ValueError as error:
        raise RecordUnreadable(f"the tokens of a record of its turns cannot be read: {error}") from error
    if len(ids) != len(logprobs):
        raise RecordUnreadable(f"a record of its turns has {len(ids)} tokens and {len(logprobs)} log-probabilities")
    return ids.tolist(), logprobs.tolist()


def spans_of(read: LoggedCompletion) -> list[CompletionSpan]:
    """The spans of a completion that are not empty: who sampled which of its tokens."""
    whole = CompletionSpan(start=0, end=len(read.ids) // 4, backend=read.backend, version=read.version)
    return [span for span in read.spans or [whole] if span.end > span.start]
