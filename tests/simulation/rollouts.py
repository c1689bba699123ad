"""Turns and trajectories as the simulated task family makes them: each record has a number that no other one has."""

from collections.abc import Sequence
from typing import Final

from prorl_mq.schema.codec import compress, encode
from prorl_mq.schema.trajectory import INHERITED, ForkedFrom, Segment, Span, Trajectory, Turn
from prorl_mq.schema.turns import (
    SCHEMA,
    CompletionSpan,
    LoggedCompletion,
    TurnResults,
    pack_tokens,
    read_record,
    unpack_tokens,
)

_SPANS: Final = (CompletionSpan(start=0, end=1, backend="b"),)


def record(place: int, number: int) -> bytes:
    """Of a completion with one token, or of what a turn was answered."""
    if place % 2:
        return compress(encode(TurnResults([], str(number), 0.0, 0.0)))
    ids, logprobs = pack_tokens([number], [-1.0])
    return compress(encode(LoggedCompletion(
        SCHEMA, 1 + place // 2, b"", ids, logprobs, "stop", None, "b", None, _SPANS, None, 0.0, 0.0, 0.0, None
    )))  # fmt: skip


def number_of(place: int, logged: bytes) -> int:
    """Its number. A forked job has it too: there the log-probabilities alone are others."""
    if place % 2:
        return int(read_record(logged, TurnResults).reply or 0)
    [number], _ = unpack_tokens(read_record(logged, LoggedCompletion))
    return number


def trajectory(numbers: Sequence[int], forked_from: ForkedFrom | None) -> Trajectory:
    """That of a rollout with these records."""
    shared = forked_from.turn + 1 if forked_from is not None else 0
    ids = list(numbers[::2])
    mask = [int(place >= shared) for place in range(len(ids))]
    segment = Segment(
        prompt_ids=[1], response_ids=ids, loss_mask=mask, logprobs=[-1.0 if own else None for own in mask],
        spans=[Span(start=shared, end=len(ids), backend="b")] if len(ids) > shared else [],
    )  # fmt: skip
    turns = [
        Turn(
            segment=0, prompt_tokens=1 + place, completion_tokens=1, cached_tokens=None, finish_reason="stop",
            llm_seconds=0.0, text="", reply=str(numbers[2 * place + 1]), left_out="" if own else INHERITED,
        )
        for place, own in enumerate(mask)
    ]  # fmt: skip
    return Trajectory(segments=[segment], turns=turns, stop_reason="finish", forked_from=forked_from)
