"""Input of every converter: a sample that may be trained on, with its trajectory."""

from collections.abc import Mapping, Sequence

import msgspec

from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord
from prorl_mq.schema.trajectory import Segment, Trajectory, Turn

TRAINABLE = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR})


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a task. Make it with `rollout` or `rollouts`, which refuse what has no reward or no tokens."""

    task_id: str
    sample: SampleRecord
    trajectory: Trajectory
    reward: float

    @property
    def segments(self) -> list[tuple[int, Segment]]:
        """The segments in which a token was sampled, with their numbers."""
        return [(number, segment) for number, segment in enumerate(self.trajectory.segments) if segment.spans]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of a segment, `[start, end)` of its response, and its turn."""

    number: int
    start: int
    end: int
    turn: Turn


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One completion by itself: all that the model was sent, and what it said."""

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float | None]
    version: int | None  # of the policy, at the end, where the backend told it as a whole number
    turn: Turn


def rollout(task_id: str, sample: SampleRecord, trajectory: Trajectory | None) -> Rollout:
    """Raises `NotTrainable`: a sample without a reward must not be given one."""
    if sample.outcome not in TRAINABLE or sample.reward is None:
        raise NotTrainable(f"{sample.job_id} ended {sample.outcome} without a reward: leave it out of the batch")
    if trajectory is None or not any(segment.spans for segment in trajectory.segments):
        raise NotTrainable(f"{sample.job_id} sampled no token: leave it out of the batch")
    return Rollout(task_id=task_id, sample=sample, trajectory=trajectory, reward=sample.reward)


def rollouts(group: GroupRecord, trajectories: Mapping[str, Trajectory]) -> list[Rollout]:
    """The samples of a group that may be trained on, in their order. `trajectories` are by job id."""
    counted = [sample for sample in group.samples if sample.outcome in TRAINABLE and sample.job_id in trajectories]
    in_order = sorted(counted, key=lambda sample: sample.index)
    return [rollout(group.task_id, sample, trajectories[sample.job_id]) for sample in in_order]


def said(turn: Turn) -> str:
    """The text of a completion without thought, calls and markers; of an older record, the whole of it."""
    return turn.text if turn.content is None else turn.content


def logprobs(segment: Segment) -> list[float]:
    """For trainers that want a number for each token: 0.0 where the mask is 0, which they must not read."""
    return [0.0 if logprob is None else logprob for logprob in segment.logprobs]


def pieces(trajectory: Trajectory, number: int) -> list[Piece]:
    """The completions of a segment in order, empty ones left out. Raises `NotTrainable` where turns are missing."""
    prompt_tokens = len(trajectory.segments[number].prompt_ids)
    found = [
        Piece(
            number=place,
            start=turn.prompt_tokens - prompt_tokens,
            end=turn.prompt_tokens - prompt_tokens + turn.completion_tokens,
            turn=turn,
        )
        for place, turn in enumerate(trajectory.turns)
        if turn.segment == number and turn.completion_tokens
    ]
    if not found:
        raise NotTrainable(f"segment {number} of the trajectory has no turns: it cannot be told apart into messages")
    return found


def completions(rollout: Rollout) -> list[Sampled]:
    """All of them in order. Quadratic: each repeats its prompt. Raises `NotTrainable` where turns are missing."""
    return [
        Sampled(
            prompt_ids=[*segment.prompt_ids, *segment.response_ids[: piece.start]],
            ids=list(segment.response_ids[piece.start : piece.end]),
            logprobs=list(segment.logprobs[piece.start : piece.end]),
            version=_version(segment, piece),
            turn=piece.turn,
        )
        for number, segment in rollout.segments
        for piece in pieces(rollout.trajectory, number)
    ]


def _version(segment: Segment, piece: Piece) -> int | None:
    told = [span.version for span in segment.spans if piece.start <= span.start < piece.end]
    last = told[-1] if told else None
    return int(last[1]) if last is not None and last[1].isdecimal() else None


def versions(segments: Sequence[Segment]) -> tuple[int, int] | None:
    """The lowest and highest policy version, where the backends told every one and they are whole numbers."""
    told = [span.version for segment in segments for span in segment.spans]
    flat = [version for pair in told if pair is not None for version in pair]
    if not flat or len(flat) != 2 * len(told) or not all(version.isdecimal() for version in flat):
        return None
    numbers = [int(version) for version in flat]
    return min(numbers), max(numbers)
