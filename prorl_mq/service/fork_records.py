"""The turns that forked jobs begin with, as records of a log: from another log, or from a trajectory. Pure.

The log-probabilities in them are 0 and nobody is named who sampled them: these tokens are trained in the job that has
sampled them.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from prorl_mq.schema.codec import compress, encode
from prorl_mq.schema.trajectory import INHERITED, Trajectory, Turn
from prorl_mq.schema.turns import (
    SCHEMA,
    CallResult,
    CompletionSpan,
    LoggedCompletion,
    RecordUnreadable,
    TurnResults,
    pack_tokens,
    read_record,
)

NOBODY: Final = (CompletionSpan(start=0, end=0, backend=""),)
SHOWN: Final = "a tool has shown an image in the turns before: fork it at an earlier turn"
CONTINUED: Final = frozenset({"start", "compaction"})  # how the segments of our own agent loop open


class CannotFork(Exception):
    """A rollout has no turns that another one could begin with; the text says why."""


def of_log(records: Sequence[bytes]) -> list[bytes]:
    """Records of turns, without their numbers, as forked jobs have them. Raises `CannotFork`."""
    try:
        return [_answered(record) if place % 2 else _shared(record) for place, record in enumerate(records)]
    except RecordUnreadable as error:
        raise CannotFork(str(error)) from error


def _answered(record: bytes) -> bytes:
    """Results of calls as they are. Raises `CannotFork` for an image among them, whose file is the other job's."""
    if any(call.image for call in read_record(record, TurnResults).calls):
        raise CannotFork(SHOWN)
    return record


def _shared(record: bytes) -> bytes:
    read = read_record(record, LoggedCompletion)
    if read.schema != SCHEMA:
        raise CannotFork(f"its turns were logged in form {read.schema}; this service reads form {SCHEMA}")
    count = len(read.ids) // 4
    _, logprobs = pack_tokens([], [0.0] * count)
    return compress(encode(msgspec.structs.replace(read, logprobs=logprobs, spans=NOBODY)))


def of_trajectory(trajectory: Trajectory, turn: int) -> list[bytes]:
    """The records of the turns 0 to `turn` of a finished rollout. Raises `CannotFork`."""
    last = len(trajectory.turns) - 1
    for each in trajectory.turns:
        if each.session or each.client_calls or each.following or each.left_out not in {"", INHERITED}:
            raise CannotFork("its agent is a third-party one, whose state is in its own processes")
    if any(segment.opened_by not in CONTINUED for segment in trajectory.segments):
        raise CannotFork("its conversation broke or parted, and cannot be made again from its turns")
    if turn >= last:
        raise CannotFork(f"it has {last + 1} turns, and nothing follows the last one: {_allowed(last)}")
    if any(_shows(trajectory, number) for number in range(turn + 2)):
        raise CannotFork(SHOWN)
    return [record for number in range(turn + 1) for record in _records(trajectory, number)]


def _allowed(last: int) -> str:
    return f"fork it at turn 0 to {last - 1}" if last > 0 else "it cannot be forked"


def _shows(trajectory: Trajectory, number: int) -> bool:
    """True if the prompt of a turn has an image that came with the result of a call."""
    turn = trajectory.turns[number]
    segment = trajectory.segments[turn.segment]
    return any(len(segment.prompt_ids) <= each.start < turn.prompt_tokens for each in segment.images)


def _records(trajectory: Trajectory, number: int) -> Iterator[bytes]:
    """The completion of a turn, and its results, as its worker has logged them, but for whom to train."""
    turn = trajectory.turns[number]
    before = trajectory.turns[number - 1] if number else None
    segment = trajectory.segments[turn.segment]
    ids, start = [*segment.prompt_ids, *segment.response_ids], turn.prompt_tokens
    same = before is not None and before.segment == turn.segment
    added = array("I", ids[before.prompt_tokens if before is not None and same else 0 : start])
    sampled, logprobs = pack_tokens(ids[start : start + turn.completion_tokens], [0.0] * turn.completion_tokens)
    if segment.images and turn.segment:
        raise CannotFork("its history was shortened with images in it: fork it at an earlier turn")
    compacted = None if same or before is None else msgspec.to_builtins(segment.messages)
    used_s = _used_s(trajectory, number)
    yield compress(encode(LoggedCompletion(
        SCHEMA, start, hashlib.blake2b(added.tobytes(), digest_size=8).digest(), sampled, logprobs, turn.finish_reason,
        turn.stop_token, "", None, NOBODY, turn.cached_tokens, turn.llm_seconds, turn.started_seconds, used_s,
        compacted,
    )))  # fmt: skip
    calls = [CallResult(call.result, call.ok, call.refused, call.seconds) for call in turn.tool_calls]
    spent_s = sum(call.seconds for call in calls)
    elapsed_s = turn.started_seconds + turn.llm_seconds + spent_s
    yield compress(encode(TurnResults(calls, turn.reply or None, used_s + spent_s, elapsed_s)))


def _used_s(trajectory: Trajectory, number: int) -> float:
    """Time of RUN's budget that was used when a turn was sampled: that of turns and calls, which a trajectory has."""
    earlier = trajectory.turns[:number]
    return trajectory.turns[number].llm_seconds + sum(map(_seconds, earlier))


def _seconds(turn: Turn) -> float:
    return turn.llm_seconds + sum(call.seconds for call in turn.tool_calls)


def sampled_tokens(records: Sequence[bytes]) -> int:
    """Number of tokens in the completions of some records."""
    return sum(len(read_record(record, LoggedCompletion).ids) // 4 for record in records[::2])
