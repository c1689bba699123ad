"""A trajectory in pieces that a page can show: turns without their tokens, and tokens by ranges. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from prorl_mq.errors import NotFound
from prorl_mq.schema.trajectory import (
    ForkedFrom,
    HostReached,
    PromptMessage,
    Segment,
    Span,
    ToolCall,
    Trajectory,
    Turn,
)

CUT: Final = 4_000  # characters of a text, unless all of it is asked for


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or its beginning: `characters` is the length of the whole."""

    text: str
    characters: int


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of the agent."""

    name: str
    arguments: Excerpt
    result: Excerpt
    ok: bool
    seconds: float


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it was given to the chat template."""

    role: str
    content: Excerpt


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. Its tokens are `[start, end)` of its segment's response."""

    number: int
    segment: int
    start: int
    end: int
    prompt_tokens: int
    cached_tokens: int | None
    finish_reason: str
    llm_seconds: float
    started_seconds: float
    text: Excerpt
    tool_calls: Sequence[CallView]
    reply: Excerpt | None  # what an environment said to a turn that called no tool
    mean_logprob: float | None
    versions: Sequence[str]  # of the policy: more than one where it changed meanwhile
    backends: Sequence[str]
    left_out: str = ""  # why its tokens are not trained
    content: Excerpt | None = None  # the text without thought, calls and markers; null in older records
    reasoning: Excerpt | None = None  # its thought
    following: Sequence[MessageView] = ()  # that a harness sent behind it


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One unbroken token sequence."""

    opened_by: str
    prompt: Excerpt
    prompt_tokens: int
    response_tokens: int
    sampled_tokens: int
    messages: Sequence[MessageView] = ()  # that the prompt was made of


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """Some turns of a trajectory, and what it is as a whole. `next` is where the following page begins."""

    segments: Sequence[SegmentView]
    turns: Sequence[TurnView]
    turns_in_all: int
    next: int | None
    versions: Sequence[str]  # of the policy, in the order of their first token
    stop_reason: str
    truncated_by: str | None
    temperature: float
    top_p: float
    top_k: int
    forked_from: ForkedFrom | None = None  # whose turns its first ones are
    egress: Sequence[HostReached] = []  # hosts that its sandbox reached, or was refused
    failed: Sequence[int] = ()  # numbers of all turns with a call that failed


class TokenPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `[start, start + len(ids))` of a segment's prompt or response, which has `total`.

    Of a prompt there are ids alone. `spans` say which backend sampled what, and on which policy version.
    """

    segment: int
    part: Literal["prompt", "response"]
    start: int
    total: int
    ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    spans: Sequence[Span]
    texts: Sequence[str] = ()  # of each token; none where the service has no vocabulary


def outline(trajectory: Trajectory, *, after: int, limit: int, full: bool) -> Outline:
    """The turns from number `after` on. `full`: texts are not cut."""
    turns = trajectory.turns[after : after + limit]
    more = after + len(turns)
    return Outline(
        segments=[_segment(each, full=full) for each in trajectory.segments],
        turns=[_turn(trajectory, after + place, turn, full=full) for place, turn in enumerate(turns)],
        turns_in_all=len(trajectory.turns),
        next=more if more < len(trajectory.turns) else None,
        versions=_versions([span for _, segment in trajectory.of_model("") for span in segment.spans]),
        stop_reason=trajectory.stop_reason,
        truncated_by=trajectory.truncated_by,
        temperature=trajectory.temperature,
        top_p=trajectory.top_p,
        top_k=trajectory.top_k,
        forked_from=trajectory.forked_from,
        egress=trajectory.egress,
        failed=[number for number, turn in enumerate(trajectory.turns) if not all(call.ok for call in turn.tool_calls)],
    )


def tokens(
    trajectory: Trajectory, *, segment: int, part: Literal["prompt", "response"], start: int, limit: int
) -> TokenPage:
    """Raises `NotFound` for a segment that there is not."""
    if segment >= len(trajectory.segments):
        raise NotFound(f"there is no segment {segment}: the trajectory has {len(trajectory.segments)}")
    whole, end = trajectory.segments[segment], start + limit
    ids = whole.prompt_ids if part == "prompt" else whole.response_ids
    sampled = part == "response"
    return TokenPage(
        segment=segment,
        part=part,
        start=start,
        total=len(ids),
        ids=ids[start:end],
        loss_mask=whole.loss_mask[start:end] if sampled else (),
        logprobs=whole.logprobs[start:end] if sampled else (),
        spans=_within(whole.spans, start, end) if sampled else (),
    )


def _segment(each: Segment, *, full: bool) -> SegmentView:
    return SegmentView(
        opened_by=each.opened_by,
        prompt=_text(each.prompt_text, full=full),
        prompt_tokens=len(each.prompt_ids),
        response_tokens=len(each.response_ids),
        sampled_tokens=sum(each.loss_mask),
        messages=_messages(each.messages, full=full),
    )


def _turn(trajectory: Trajectory, number: int, turn: Turn, *, full: bool) -> TurnView:
    segment = trajectory.segments[turn.segment]
    start = turn.prompt_tokens - len(segment.prompt_ids)
    end = start + turn.completion_tokens
    known = [each for each in segment.logprobs[start:end] if each is not None]
    spans = _within(segment.spans, start, end)
    return TurnView(
        number=number,
        segment=turn.segment,
        start=start,
        end=end,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        finish_reason=turn.finish_reason,
        llm_seconds=turn.llm_seconds,
        started_seconds=turn.started_seconds,
        text=_text(turn.text, full=full),
        tool_calls=[_call(each, full=full) for each in turn.tool_calls],
        reply=_text(turn.reply, full=full) if turn.reply else None,
        mean_logprob=sum(known) / len(known) if known else None,
        versions=_versions(spans),
        backends=list(dict.fromkeys(span.backend for span in spans)),
        left_out=turn.left_out,
        content=None if turn.content is None else _text(turn.content, full=full),
        reasoning=_text(turn.reasoning, full=full) if turn.reasoning else None,
        following=_messages(turn.following, full=full),
    )


def _call(call: ToolCall, *, full: bool) -> CallView:
    return CallView(
        name=call.name,
        arguments=_text(call.arguments, full=full),
        result=_text(call.result, full=full),
        ok=call.ok,
        seconds=call.seconds,
    )


def _messages(found: Sequence[PromptMessage], *, full: bool) -> list[MessageView]:
    return [MessageView(role=each.role, content=_text(each.content, full=full)) for each in found]


def _text(text: str, *, full: bool) -> Excerpt:
    return Excerpt(text=text if full else text[:CUT], characters=len(text))


def _within(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    return [span for span in spans if span.start < end and span.end > start]


def _versions(spans: Sequence[Span]) -> list[str]:
    return list(dict.fromkeys(version for span in spans for version in span.version or ()))
