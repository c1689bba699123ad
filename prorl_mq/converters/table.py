"""Rows of a table: one for each segment of a sample, and one without tokens for a sample that has none.

Segments of completions that are not trained (superseded, unread, side) have none.

The columns are the fields of `Row`; `docs/reference/export.md` says what each holds. Token columns of a row have the
lengths of its segment; log-probabilities are the doubles that the backend sent, null where the mask is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.converters.rollout import pieces, said
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import FIRST, SCHEMA_VERSION, Outcome
from prorl_mq.schema.trajectory import ExpertRoutes, PromptMessage, Segment, Span, Trajectory, Turn


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file that `prorl-mq submit` writes; other fields are skipped."""

    run_id: str
    batch_id: str
    group_id: str
    job_id: str
    index: int
    task_id: str
    data_source: str
    verdict: str
    outcome: Outcome
    reward: float | None = None
    reward_parts: Mapping[str, float] = {}
    note: str | None = None
    replaced: bool = False
    attempt: int = 0
    turns: int = 0
    seconds: Mapping[str, float] = {}
    trajectory: Trajectory | None = None
    schema: int = FIRST


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """One message for people and for supervised fine-tuning; never fed back."""

    role: str
    content: str
    tool_calls: str  # JSON: a list of name and arguments
    reasoning: str  # an assistant's thought


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of one sample."""

    run_id: str
    batch_id: str
    group_id: str
    job_id: str
    index: int
    task_id: str
    data_source: str
    verdict: str
    outcome: str
    reward: float | None
    reward_parts: str  # JSON
    note: str | None
    replaced: bool
    attempt: int
    turns: int
    seconds: str  # JSON
    segment: int | None
    segments: int
    model: str | None
    opened_by: str | None
    stop_reason: str | None
    truncated_by: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    tools: str  # JSON
    messages: Sequence[Text]
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    spans: Sequence[Span]
    share: float | None
    keeps_thinking: bool | None
    forked_from: str | None
    forked_turn: int | None
    routed_experts: bytes | None
    experts_shape: Sequence[int] | None
    schema: int = SCHEMA_VERSION


def rows(sample: Sample, *, left_out: bool = False) -> Iterator[Row]:
    """The rows of one sample, in the order of its segments. `left_out`: segments that are not trained have one too."""
    trajectory = sample.trajectory
    if trajectory is None or not trajectory.segments:
        yield _row(sample, trajectory, None, None)
        return
    untrained = set() if left_out else {turn.segment for turn in trajectory.turns if turn.left_out}
    for number, segment in enumerate(trajectory.segments):
        if number in untrained and not segment.spans:
            continue
        yield _row(sample, trajectory, number, segment)


def _row(sample: Sample, trajectory: Trajectory | None, number: int | None, segment: Segment | None) -> Row:
    return Row(
        run_id=sample.run_id,
        batch_id=sample.batch_id,
        group_id=sample.group_id,
        job_id=sample.job_id,
        index=sample.index,
        task_id=sample.task_id,
        data_source=sample.data_source,
        verdict=sample.verdict,
        outcome=str(sample.outcome),
        reward=sample.reward,
        reward_parts=_json(sample.reward_parts),
        note=sample.note,
        replaced=sample.replaced,
        attempt=sample.attempt,
        turns=sample.turns,
        seconds=_json(sample.seconds),
        segment=number,
        segments=len(trajectory.segments) if trajectory else 0,
        model=_model(trajectory, number),
        opened_by=segment.opened_by if segment else None,
        stop_reason=trajectory.stop_reason if trajectory else None,
        truncated_by=trajectory.truncated_by if trajectory else None,
        temperature=trajectory.temperature if trajectory else None,
        top_p=trajectory.top_p if trajectory else None,
        top_k=trajectory.top_k if trajectory else None,
        tools=_json(trajectory.tools if trajectory else []),
        messages=_messages(trajectory, number),
        prompt_ids=segment.prompt_ids if segment else [],
        response_ids=segment.response_ids if segment else [],
        loss_mask=segment.loss_mask if segment else [],
        logprobs=segment.logprobs if segment else [],
        spans=segment.spans if segment else [],
        share=_share(trajectory, number),
        keeps_thinking=segment.keeps_thinking if segment else None,
        forked_from=trajectory.forked_from.job_id if trajectory and trajectory.forked_from else None,
        forked_turn=trajectory.forked_from.turn if trajectory and trajectory.forked_from else None,
        routed_experts=segment.routes.data if segment and segment.routes else None,
        experts_shape=_shape(segment.routes) if segment and segment.routes else None,
    )


def _model(trajectory: Trajectory | None, number: int | None) -> str | None:
    """The name of the model whose segment it is; empty is the policy."""
    if trajectory is None or number is None:
        return None
    return next((turn.model for turn in trajectory.turns if turn.segment == number), "")


def _share(trajectory: Trajectory | None, number: int | None) -> float | None:
    """The part that a segment has of the tokens that its model is trained on; None where there are none."""
    model = _model(trajectory, number)
    if trajectory is None or number is None or model is None:
        return None
    total = sum(sum(each.loss_mask) for _, each in trajectory.of_model(model))
    return sum(trajectory.segments[number].loss_mask) / total if total else None


def _messages(trajectory: Trajectory | None, number: int | None) -> list[Text]:
    """None for a segment in which nothing was sampled."""
    if trajectory is None or number is None:
        return []
    try:
        found = pieces(trajectory, number, inherited=True, images=True)
    except NotTrainable:
        return []
    segment = trajectory.segments[number]
    texts = [_text(each.role, each.content) for each in segment.messages] or [_text("user", segment.prompt_text)]
    for piece, after in zip(found, [*found[1:], None], strict=True):
        calls = [{"name": name, "arguments": arguments} for name, arguments in _calls(piece.turn)]
        texts.append(_text("assistant", said(piece.turn), calls, piece.turn.reasoning))
        if after is not None and after.start > piece.end:
            texts += [_text(each.role, each.content) for each in _following(piece.turn)]
    return texts


def _calls(turn: Turn) -> Sequence[tuple[str, str]]:
    """The calls that could be read."""
    made = [*((call.name, call.arguments) for call in turn.tool_calls), *turn.client_calls]
    return [(name, arguments) for name, arguments in made if name]


def _following(turn: Turn) -> Sequence[PromptMessage]:
    """The messages that the environment put behind a turn."""
    results = [PromptMessage(role="tool", content=call.result) for call in turn.tool_calls]
    return results or turn.following or [PromptMessage(role="user", content=turn.reply)]


def _text(role: str, content: str, calls: Sequence[Any] = (), reasoning: str = "") -> Text:
    return Text(role=role, content=content, tool_calls=_json(calls), reasoning=reasoning)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shape(routes: ExpertRoutes) -> list[int]:
    return [routes.rows, routes.of.layers, routes.of.top_k, routes.of.bytes_an_id]
