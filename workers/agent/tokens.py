"""The token record of one rollout, kept while it grows.

Invariant: a prompt is the previous prompt, the previous completion as it was sampled, and what the environment added.
Whatever breaks that starts a new segment: nothing is decoded and encoded again to make it fit.
"""

from collections.abc import Sequence

from prorl_mq.messages import Sampling
from prorl_mq.trajectory import Segment, Span, Trajectory, Turn, check
from workers.inference.protocol import Completion, MalformedAnswer


class _OpenSegment:
    """A segment that still grows."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = list(prompt_ids)
        self.context = list(prompt_ids)  # prompt and response so far: what the backend is sent
        self.loss_mask: list[int] = []
        self.logprobs: list[float | None] = []
        self.spans: list[Span] = []

    def insert(self, ids: Sequence[int]) -> None:
        self.context.extend(ids)
        self.loss_mask.extend([0] * len(ids))
        self.logprobs.extend([None] * len(ids))

    def sample(self, completion: Completion) -> None:
        start = len(self.loss_mask)
        self.context.extend(completion.ids)
        self.loss_mask.extend([1] * len(completion.ids))
        self.logprobs.extend(completion.logprobs)
        if completion.ids:
            end = len(self.loss_mask)
            self.spans.append(Span(start=start, end=end, backend=completion.backend, version=completion.version))

    def close(self) -> Segment:
        return Segment(
            prompt_ids=self.prompt_ids,
            response_ids=self.context[len(self.prompt_ids) :],
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            spans=self.spans,
        )


class TokenRecord:
    """Builds a `Trajectory` from prompts, completions and environment deltas, in the order they happened."""

    def __init__(self, prompt_ids: Sequence[int], *, end_of_turn: int) -> None:
        self._end_of_turn = end_of_turn
        self._open = _OpenSegment(prompt_ids)
        self._closed: list[Segment] = []
        self._turns: list[Turn] = []
        self._turn_open = False  # the last token was sampled and is no end of turn
        self.sampled_tokens = 0

    @property
    def context(self) -> Sequence[int]:
        """The ids that the next completion continues."""
        return self._open.context

    @property
    def segment(self) -> int:
        """The number of the segment that grows now."""
        return len(self._closed)

    @property
    def forks(self) -> int:
        """How often a prompt did not continue the one before it."""
        return len(self._closed)

    @property
    def turns(self) -> int:
        return len(self._turns)

    def sample(self, completion: Completion) -> None:
        """Appends sampled ids with mask 1. Raises `MalformedAnswer` when the answer does not fit what was sent."""
        sent = len(self._open.context)
        if len(completion.ids) != len(completion.logprobs):
            lengths = f"{len(completion.ids)} ids and {len(completion.logprobs)} log-probabilities"
            raise MalformedAnswer(f"backend {completion.backend!r} answered {lengths}; they must be as many")
        if completion.prompt_tokens is not None and completion.prompt_tokens != sent:
            counted = f"counted {completion.prompt_tokens} prompt tokens where {sent} were sent"
            raise MalformedAnswer(f"backend {completion.backend!r} {counted}; does it change prompts?")
        self._open.sample(completion)
        self.sampled_tokens += len(completion.ids)
        self._turn_open = not completion.ids or completion.ids[-1] != self._end_of_turn

    def continued(self, delta: Sequence[int]) -> list[int]:
        """The next prompt: everything so far and the delta, after an end of turn where the completion was cut."""
        closing = [self._end_of_turn] if self._turn_open else []
        return [*self._open.context, *closing, *delta]

    def prompt(self, prompt_ids: Sequence[int]) -> None:
        """Takes the next prompt. What follows the known prefix gets mask 0; a broken prefix opens a new segment."""
        known = len(self._open.context)
        if list(prompt_ids[:known]) == self._open.context:
            self._open.insert(prompt_ids[known:])
        else:
            self._closed.append(self._open.close())
            self._open = _OpenSegment(prompt_ids)
        self._turn_open = False

    def end_turn(self, turn: Turn) -> None:
        self._turns.append(turn)

    def trajectory(self, *, stop_reason: str, truncated_by: str | None, sampling: Sampling) -> Trajectory:
        """The finished record, checked."""
        finished = Trajectory(
            segments=[*self._closed, self._open.close()],
            turns=self._turns,
            stop_reason=stop_reason,
            truncated_by=truncated_by,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        check(finished)
        return finished
