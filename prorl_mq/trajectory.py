"""The token-exact record of one job.

A trajectory is one or more segments. A segment is one unbroken token sequence: prompt ids, then response ids that
hold sampled tokens (mask 1) and what the environment put between them (mask 0). The arrays of a segment have one
length; `check` raises when they do not. A break of the prefix starts a new segment and is never repaired.
"""

from collections.abc import Sequence

import msgspec

SCHEMA_VERSION = 1


class TrajectoryError(Exception):
    """The arrays of a trajectory do not fit together."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled tokens `[start, end)` of a segment's response, by one backend.

    `version` is the policy version at the start and end of the call: equal unless an update overlapped it;
    None where the backend does not tell.
    """

    start: int
    end: int
    backend: str
    version: tuple[str, str] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of the agent, as it was executed."""

    name: str
    arguments: str  # JSON text, as parsed from the completion
    result: str
    ok: bool
    seconds: float


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One completion and what followed it."""

    segment: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None  # prefix-cache hits as the backend reports them
    finish_reason: str  # stop, length, abort
    llm_seconds: float
    text: str  # the completion decoded for people; never fed back
    tool_calls: Sequence[ToolCall] = ()


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One unbroken token sequence. `loss_mask`, `logprobs` and `response_ids` have one length."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]  # 1 for sampled tokens, 0 for inserted ones
    logprobs: Sequence[float | None]  # as the backend sent them; None exactly where the mask is 0
    spans: Sequence[Span] = ()


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a job. Temperature, top-p and top-k belong to it: without them log-probabilities mean nothing."""

    segments: Sequence[Segment]
    turns: Sequence[Turn]
    stop_reason: str  # finish, answer, max_turns, max_tokens, context, time, protocol, cancelled
    truncated_by: str | None = None  # turns, tokens, context, time
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    schema: int = SCHEMA_VERSION


def check(trajectory: Trajectory) -> None:
    """Raises `TrajectoryError` naming the segment and the rule it breaks."""
    for number, segment in enumerate(trajectory.segments):
        length = len(segment.response_ids)
        if len(segment.loss_mask) != length or len(segment.logprobs) != length:
            lengths = f"{length} ids, {len(segment.loss_mask)} mask, {len(segment.logprobs)} log-probabilities"
            raise TrajectoryError(f"segment {number}: arrays differ in length: {lengths}")
        for place, (mask, logprob) in enumerate(zip(segment.loss_mask, segment.logprobs, strict=True)):
            if (mask == 1) != (logprob is not None):
                raise TrajectoryError(f"segment {number}, token {place}: mask {mask} with log-probability {logprob}")
        sampled = sum(span.end - span.start for span in segment.spans)
        if sampled != sum(segment.loss_mask):
            raise TrajectoryError(f"segment {number}: spans cover {sampled} tokens, the mask {sum(segment.loss_mask)}")
