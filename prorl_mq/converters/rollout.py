"""Input of every converter: a sample that may be trained on, with its trajectory."""

import contextlib
import hashlib
import itertools
from collections.abc import Mapping, Sequence

import msgspec

from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord
from prorl_mq.schema.trajectory import INHERITED, ExpertRoutes, Segment, Trajectory, Turn

TRAINABLE = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR})


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One model's part in a sample of a task. Make it with `rollout` or `rollouts`, which refuse what has no reward or
    no tokens.
    """

    task_id: str
    sample: SampleRecord
    trajectory: Trajectory
    reward: float
    model: str = ""  # whose rows these are: the policy, or another model by the name that the task gives it

    def of(self, model: str) -> "Rollout":
        """The part that another model has in the same sample; empty is the policy. Raises `NotTrainable`."""
        return rollout(self.task_id, self.sample, self.trajectory, model)

    @property
    def rows(self) -> "list[TrainingRow]":
        """All that is trained of the model: each token that it sampled has mask 1 in one of them."""
        found = self.segments
        counts = [sum(segment.loss_mask) for _, segment in found]
        return [
            TrainingRow(
                sample_id=self.sample.job_id,
                row=place,
                rows=len(found),
                segment=number,
                prompt_ids=segment.prompt_ids,
                response_ids=segment.response_ids,
                loss_mask=segment.loss_mask,
                logprobs=segment.logprobs,
                share=count / sum(counts),
                routes=segment.routes,
            )
            for place, ((number, segment), count) in enumerate(zip(found, counts, strict=True))
        ]

    @property
    def drawn(self) -> int:
        """The place of the one row that a trainer gets which takes no more: the same for the same sample.

        A row is drawn as often as its share says. So a loss that averages over a row's tokens and then over rows is in
        expectation the mean over all trained tokens of the sample. A loss that averages over the tokens of a batch is
        not: it prefers long rows.
        """
        return draw(self.sample.job_id, [row.share for row in self.rows])

    @property
    def segments(self) -> list[tuple[int, Segment]]:
        """The segments in which the model sampled a token that is trained, with their numbers."""
        return _sampled(self.trajectory, self.model)


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to train on. Its advantage is its sample's, computed before there were rows.

    Its weight in the loss is 1 where tokens of a batch are averaged, and `share` where each row is averaged first: then
    the rows of a sample weigh as much as a sample of one row.
    """

    sample_id: str
    row: int
    rows: int  # of the sample
    segment: int
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    share: float  # of the tokens of the sample that its model is trained on
    routes: ExpertRoutes | None = None  # of all its tokens but the last one


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


def draw(name: str, shares: Sequence[float]) -> int:
    """A place in `shares`, drawn as often as each says: the same for the same name."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    at = int.from_bytes(digest) / 2**64 * sum(shares)
    return next((place for place, end in enumerate(itertools.accumulate(shares)) if at < end), len(shares) - 1)


def rollout(task_id: str, sample: SampleRecord, trajectory: Trajectory | None, model: str = "") -> Rollout:
    """Raises `NotTrainable`: a sample without a reward must not be given one."""
    if sample.outcome not in TRAINABLE or sample.reward is None:
        raise NotTrainable(f"{sample.job_id} ended {sample.outcome} without a reward: leave it out of the batch")
    if trajectory is None or not _sampled(trajectory, model):
        whose = f" that model {model!r} is trained on" if model else ""
        raise NotTrainable(f"{sample.job_id} sampled no token{whose}: leave it out of the batch")
    return Rollout(task_id=task_id, sample=sample, trajectory=trajectory, reward=sample.reward, model=model)


def _sampled(trajectory: Trajectory, model: str) -> list[tuple[int, Segment]]:
    return [(number, segment) for number, segment in trajectory.of_model(model) if segment.spans]


def rollouts(group: GroupRecord, trajectories: Mapping[str, Trajectory], model: str = "") -> list[Rollout]:
    """The samples of a group that may be trained on, in their order; one that may not be hides no other.

    `trajectories` are by job id. `model`: whose rows are wanted; empty is the policy.
    """
    found: list[Rollout] = []
    for sample in sorted(group.samples, key=lambda sample: sample.index):
        if sample.job_id in trajectories:
            with contextlib.suppress(NotTrainable):
                found.append(rollout(group.task_id, sample, trajectories[sample.job_id], model))
    return found


def said(turn: Turn) -> str:
    """The text of a completion without thought, calls and markers; of an older record, the whole of it."""
    return turn.text if turn.content is None else turn.content


def logprobs(segment: Segment | TrainingRow) -> list[float]:
    """For trainers that want a number for each token: 0.0 where the mask is 0, which they must not read."""
    return [0.0 if logprob is None else logprob for logprob in segment.logprobs]


def require_text(trajectory: Trajectory) -> None:
    """Raises `NotTrainable` for a trajectory with images, where they cannot be handed on: a trainer would compute other
    probabilities from its ids alone.
    """
    if trajectory.images:
        raise NotTrainable(
            f"the trajectory has {len(trajectory.images)} images, and this form has no place for them: use that of "
            "verl or SkyRL"
        )


def pieces(trajectory: Trajectory, number: int, *, inherited: bool = False, images: bool = False) -> list[Piece]:
    """The completions of a segment in order, empty ones left out. `inherited`: also those that another sample has
    sampled and trains; `images`: they are handed on, too. Raises `NotTrainable` where they are not, and where turns are
    missing.
    """
    if not images:
        require_text(trajectory)
    kept = {"", INHERITED} if inherited else {""}
    prompt_tokens = len(trajectory.segments[number].prompt_ids)
    found = [
        Piece(
            number=place,
            start=turn.prompt_tokens - prompt_tokens,
            end=turn.prompt_tokens - prompt_tokens + turn.completion_tokens,
            turn=turn,
        )
        for place, turn in enumerate(trajectory.turns)
        if turn.segment == number and turn.completion_tokens and turn.left_out in kept
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
