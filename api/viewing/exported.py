"""Groups made of exported rows, which have less than a record: no timings, and no result by call."""

import json
from collections.abc import Iterator, Sequence

import msgspec

from prorl_mq.archive.table import WholeGroup
from prorl_mq.converters.table import Text
from prorl_mq.rules.rewards import advantages, counting, statistics
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.schema.trajectory import Segment, Span, ToolCall, Trajectory, Turn


class ExportedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `prorl-mq export`; other columns are skipped."""

    run_id: str
    batch_id: str
    group_id: str
    job_id: str
    index: int
    task_id: str
    data_source: str
    verdict: Verdict
    outcome: Outcome
    reward: float | None
    reward_parts: str
    note: str | None
    replaced: bool
    attempt: int
    turns: int
    seconds: str
    segment: int | None
    opened_by: str | None
    stop_reason: str | None
    truncated_by: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    tools: str
    messages: Sequence[Text]
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    spans: Sequence[Span]


def whole_group(rows: Sequence[ExportedRow]) -> WholeGroup:
    """The group of some rows, which are all of it."""
    by_job: dict[str, list[ExportedRow]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    trajectories = {job: made for job, own in by_job.items() if (made := _trajectory(own))}
    samples = [_sample(own, job in trajectories) for job, own in by_job.items()]
    first, stats = rows[0], statistics(counting(samples))
    record = GroupRecord(
        run_id=first.run_id,
        batch_id=first.batch_id,
        group_id=first.group_id,
        task_id=first.task_id,
        data_source=first.data_source,
        verdict=first.verdict,
        samples=samples,
        n=sum(not each.replaced for each in samples),
        rewards=stats,
        advantages=advantages(samples, stats),
    )
    return WholeGroup(record, trajectories)


def _sample(own: Sequence[ExportedRow], told: bool) -> SampleRecord:
    first = own[0]
    return SampleRecord(
        job_id=first.job_id,
        index=first.index,
        outcome=first.outcome,
        reward=first.reward,
        reward_parts=json.loads(first.reward_parts),
        note=first.note,
        truncated_by=first.truncated_by,
        stop_reason=first.stop_reason,
        attempt=first.attempt,
        turns=first.turns,
        response_tokens=sum(sum(row.loss_mask) for row in own),
        trajectory="file" if told else None,
        seconds=json.loads(first.seconds),
        replaced=first.replaced,
    )


def _trajectory(own: Sequence[ExportedRow]) -> Trajectory | None:
    told = [row for row in own if row.segment is not None]
    if not told:
        return None
    first = told[0]
    return Trajectory(
        segments=[_segment(row) for row in told],
        turns=[turn for place, row in enumerate(told) for turn in _turns(place, row)],
        stop_reason=first.stop_reason or "",
        truncated_by=first.truncated_by,
        temperature=1.0 if first.temperature is None else first.temperature,
        top_p=1.0 if first.top_p is None else first.top_p,
        top_k=-1 if first.top_k is None else first.top_k,
        tools=json.loads(first.tools),
    )


def _segment(row: ExportedRow) -> Segment:
    asked = []
    for message in row.messages:
        if message.role == "assistant":
            break
        asked.append(f"{message.role}: {message.content}")
    opened = row.opened_by if row.opened_by in {"compaction", "break"} else "start"
    return Segment(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        loss_mask=row.loss_mask,
        logprobs=row.logprobs,
        spans=row.spans,
        opened_by=opened,  # type: ignore[arg-type]
        prompt_text="\n\n".join(asked),
    )


def _turns(place: int, row: ExportedRow) -> Iterator[Turn]:
    """A turn for each run of sampled tokens; its text is that of the assistant's message at its place."""
    said = list(_said(row.messages))
    for number, (start, end) in enumerate(_sampled(row.loss_mask)):
        message, answers = said[number] if number < len(said) else (None, [])
        calls = json.loads(message.tool_calls) if message else []
        results = [*(each.content for each in answers if each.role == "tool"), *([""] * len(calls))]
        yield Turn(
            segment=place,
            prompt_tokens=len(row.prompt_ids) + start,
            completion_tokens=end - start,
            cached_tokens=None,
            finish_reason="",
            llm_seconds=0.0,
            text=message.content if message else "",
            reasoning=message.reasoning if message else "",
            tool_calls=[
                ToolCall(name=call["name"], arguments=str(call["arguments"]), result=result, ok=True, seconds=0.0)
                for call, result in zip(calls, results, strict=False)
            ],
            reply="" if calls else "\n\n".join(each.content for each in answers),
        )


def _said(messages: Sequence[Text]) -> Iterator[tuple[Text, list[Text]]]:
    """Each message of the assistant, with what followed it."""
    for at, message in enumerate(messages):
        if message.role == "assistant":
            rest = messages[at + 1 :]
            end = next((place for place, each in enumerate(rest) if each.role == "assistant"), len(rest))
            yield message, list(rest[:end])


def _sampled(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = None
    for at, one in enumerate([*mask, 0]):
        if one and start is None:
            start = at
        elif not one and start is not None:
            yield start, at
            start = None
