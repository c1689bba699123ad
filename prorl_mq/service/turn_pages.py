"""Turns of a job in pages: from the log of a rollout that is under way, or from the trajectory of one that has ended.

Both show the same turn in the same way, so that one who follows a rollout to its end sees each turn once. Pure.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prorl_mq.schema.codec import encode
from prorl_mq.schema.trajectory import INHERITED, Trajectory, Turn
from prorl_mq.schema.turns import (
    SCHEMA,
    CompletionSpan,
    LoggedCall,
    LoggedCompletion,
    LoggedTurn,
    RecordUnreadable,
    TurnResults,
    read_record,
    spans_of,
    unpack_tokens,
)

AT_ONCE: Final = 10  # turns, where nobody asks for another number
PAGE_BYTES: Final = 1 << 20  # of an answer in MessagePack, but for its first turn
_TOKEN_BYTES: Final = 14  # an id and a log-probability


class Page(NamedTuple):
    """Some turns. `more`: another turn is known behind them."""

    rollout: str
    turns: Sequence[LoggedTurn]
    under_way: LoggedTurn | None
    more: bool


NONE: Final = Page("", (), None, more=False)


def logged(first: bytes | None, records: Sequence[bytes], *, after: int, limit: int) -> Page:
    """The turns of a log from number `after` on. `first` is the first record of a turn that the job has sampled itself,
    `records` are those from that turn on; of more than `limit` turns the rest is left for the next page. Raises
    `RecordUnreadable`.
    """
    if first is None and not records:
        return NONE
    pairs = [records[place : place + 2] for place in range(0, len(records), 2)]
    finished = _within(_turn(after + place, *pair) for place, pair in enumerate(pairs[:limit]) if len(pair) == 2)
    more = len(finished) < sum(len(pair) == 2 for pair in pairs)
    last = pairs[-1] if pairs and not more else ()
    under_way = _turn(after + len(pairs) - 1, last[0]) if len(last) == 1 else None
    rollout = ""
    if first is not None:
        begun = _sampled(first)
        rollout = _name(unpack_tokens(begun)[0], begun.started_s, begun.seconds)
    return Page(rollout, finished, under_way, more=more)


def ended(trajectory: Trajectory, *, after: int, limit: int) -> Page:
    """The turns of a trajectory from number `after` on."""
    if not trajectory.turns:
        return NONE
    begun = next((turn for turn in trajectory.turns if turn.left_out != INHERITED), None)
    rollout = _name(_ids(trajectory, begun), begun.started_seconds, begun.llm_seconds) if begun else ""
    chosen = trajectory.turns[after : after + limit]
    turns = _within(_of_trajectory(trajectory, after + place, turn) for place, turn in enumerate(chosen))
    return Page(rollout, turns, None, more=after + len(turns) < len(trajectory.turns))


def _name(ids: Sequence[int], started_s: float, seconds: float) -> str:
    """The name of a rollout: of its own first completion, which it samples at another time if it begins again."""
    return hashlib.blake2b(encode((ids, started_s, seconds)), digest_size=6).hexdigest()


def _within(turns: Iterable[LoggedTurn]) -> list[LoggedTurn]:
    """The first turns that `PAGE_BYTES` hold, and one in any case."""
    found: list[LoggedTurn] = []
    left = PAGE_BYTES
    for turn in turns:
        left -= len(turn.ids) * _TOKEN_BYTES + len(turn.reply.encode())
        left -= sum(len(call.result.encode()) for call in turn.calls)
        if found and left < 0:
            break
        found.append(turn)
    return found


def _sampled(record: bytes) -> LoggedCompletion:
    read = read_record(record, LoggedCompletion)
    if read.schema != SCHEMA:
        raise RecordUnreadable(f"its turns were logged in form {read.schema}; this service reads form {SCHEMA}")
    return read


def _turn(number: int, record: bytes, results: bytes | None = None) -> LoggedTurn:
    read = _sampled(record)
    ids, logprobs = unpack_tokens(read)
    followed = read_record(results, TurnResults) if results is not None else None
    return LoggedTurn(
        number=number,
        prompt_tokens=read.sent,
        cached_tokens=read.cached_tokens,
        ids=ids,
        logprobs=logprobs,
        finish_reason=read.finish_reason,
        stop_token=read.stop_token,
        spans=spans_of(read),
        llm_seconds=read.seconds,
        started_seconds=read.started_s,
        calls=[
            LoggedCall(result=each.text, ok=each.ok, refused=each.refused, seconds=each.seconds)
            for each in (followed.calls if followed else ())
        ],
        reply=(followed.reply or "") if followed else "",
    )


def _of_trajectory(trajectory: Trajectory, number: int, turn: Turn) -> LoggedTurn:
    segment = trajectory.segments[turn.segment]
    start = turn.prompt_tokens - len(segment.prompt_ids)
    end = start + turn.completion_tokens
    return LoggedTurn(
        number=number,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        ids=_ids(trajectory, turn),
        logprobs=[logprob or 0.0 for logprob in segment.logprobs[start:end]],
        finish_reason=turn.finish_reason,
        stop_token=turn.stop_token,
        spans=list(_spans(trajectory, turn, start, end)),
        llm_seconds=turn.llm_seconds,
        started_seconds=turn.started_seconds,
        calls=[
            LoggedCall(result=call.result, ok=call.ok, refused=call.refused, seconds=call.seconds)
            for call in turn.tool_calls
        ],
        reply=turn.reply,
    )


def _ids(trajectory: Trajectory, turn: Turn) -> Sequence[int]:
    segment = trajectory.segments[turn.segment]
    start = turn.prompt_tokens - len(segment.prompt_ids)
    return segment.response_ids[start : start + turn.completion_tokens]


def _spans(trajectory: Trajectory, turn: Turn, start: int, end: int) -> Iterator[CompletionSpan]:
    for span in trajectory.segments[turn.segment].spans:
        if start <= span.start and span.end <= end:
            yield CompletionSpan(
                start=span.start - start,
                end=span.end - start,
                backend=span.backend,
                version=span.version,
                raw_logprobs=span.raw_logprobs,
            )
