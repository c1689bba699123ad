"""The token record of one rollout, kept while it grows.

Invariant: a prompt is the previous prompt, the previous completion as it was sampled, and what the environment added.
Whatever breaks that starts a new segment: nothing is decoded and encoded again to make it fit.
"""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from prorl_mq.schema.images.placed import PlacedImage, PromptImage
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import INHERITED, ExpertRoutes, PromptMessage, Segment, Span, Trajectory, Turn
from prorl_mq.schema.turns import CompletionSpan
from workers.agent.hermes import Message
from workers.inference.pictures import Picture
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.request import GrowingIds

Opening = Literal["start", "compaction"]
_NONE: Final = array("d", [math.nan])


class _OpenSegment:
    """A segment that still grows: 13 bytes a token, in arrays of numbers, and six of the ids as they are sent."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        messages: Sequence[Message],
        opened_by: Opening,
        pictures: Sequence[Picture] = (),
    ) -> None:
        self.prompt_tokens = len(prompt_ids)
        self.messages = [PromptMessage(role=each.role, content=each.content) for each in messages]
        self.opened_by: Opening = opened_by
        self.pictures = pictures
        self.context = GrowingIds(prompt_ids)  # prompt and response so far: what the backend is sent
        self.loss_mask = bytearray()
        self.logprobs = array("d")  # not a number where the mask is 0
        self.spans: list[Span] = []
        self.answered = 0  # the end of the last sampled token
        self.routes: list[ExpertRoutes] = []  # one piece a completion, each from where the one before ends

    def insert(self, ids: Sequence[int]) -> None:
        self.context.extend(ids)
        self.loss_mask.extend(bytes(len(ids)))
        self.logprobs.extend(_NONE * len(ids))

    def inherit(self, ids: Sequence[int]) -> None:
        """Sampled ids that are trained in another sample."""
        self.insert(ids)
        self.answered = len(self.loss_mask)

    def route(self, routes: ExpertRoutes | None) -> None:
        if routes is not None:
            self.routes.append(routes)

    def routed(self) -> ExpertRoutes | None:
        """Those of the closed segment: of each of its tokens but the last one."""
        if not self.routes or not self.answered:
            return None
        end = self.prompt_tokens + self.answered - 1
        whole = msgspec.structs.replace(self.routes[0], data=b"".join(each.data for each in self.routes))
        return whole.until(end)

    def sample(self, completion: Completion, spans: Sequence[CompletionSpan]) -> None:
        start = len(self.loss_mask)
        self.context.extend(completion.ids)
        self.loss_mask.extend(b"\1" * len(completion.ids))
        self.logprobs.extend(completion.logprobs)
        self.spans += [
            Span(
                start=start + span.start,
                end=start + span.end,
                backend=span.backend,
                version=span.version,
                raw_logprobs=span.raw_logprobs,
            )
            for span in spans
        ]
        self.answered = self.spans[-1].end if self.spans else self.answered

    @property
    def read(self) -> list[Picture]:
        """The images that a model has answered."""
        return [each for each in self.pictures if each.start < self.prompt_tokens + self.answered]

    def closed(self, show: Callable[[Sequence[int]], str], images: Sequence[PromptImage] = ()) -> Segment:
        """Without what follows the last sampled token: no model ever answered that."""
        length, start = self.answered, self.prompt_tokens
        prompt_ids, mask = self.context[:start].tolist(), self.loss_mask[:length]
        return Segment(
            prompt_ids=prompt_ids,
            response_ids=self.context[start : start + length].tolist(),
            loss_mask=list(mask),
            logprobs=[value if each else None for value, each in zip(self.logprobs, mask, strict=False)],
            spans=self.spans,
            opened_by=self.opened_by,
            prompt_text=show(prompt_ids),
            messages=self.messages,
            routes=self.routed(),
            images=[
                PlacedImage(image=images.index(each.image), start=each.start, length=each.length) for each in self.read
            ],
        )


class TokenRecord:
    """Builds a `Trajectory` from prompts, completions and environment deltas, in the order they happened.

    `messages` are those that a prompt was rendered from; they are kept for people, beside the ids. The first
    `inherited` turns are those of another sample, in which they are trained: here they have mask 0.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        messages: Sequence[Message] = (),
        *,
        inherited: int = 0,
        pictures: Sequence[Picture] = (),
    ) -> None:
        self._open = _OpenSegment(prompt_ids, messages, "start", pictures)
        self._finished: list[_OpenSegment] = []
        self._turns: list[Turn] = []
        self._inherited = inherited
        self.sampled_tokens = 0

    @property
    def context(self) -> GrowingIds:
        """The ids that the next completion continues. They grow once that has come."""
        return self._open.context

    @property
    def routed(self) -> int:
        """The number of its first tokens whose routes are known."""
        return self._open.routes[-1].end if self._open.routes else 0

    @property
    def pictures(self) -> Sequence[Picture]:
        """The images in the context."""
        return self._open.pictures

    @property
    def segment(self) -> int:
        """The number of the segment that grows now."""
        return len(self._finished)

    @property
    def forks(self) -> int:
        """Number of prompts that did not continue the one before."""
        return len(self._finished)

    @property
    def turns(self) -> int:
        return len(self._turns)

    def sample(self, completion: Completion) -> None:
        """Appends sampled ids with mask 1. Raises `MalformedAnswer` when the answer does not fit what was sent."""
        if len(self._turns) < self._inherited:
            self._open.inherit(completion.ids)
        else:
            self._open.sample(completion, verified(completion, len(self._open.context)))
        self._open.route(completion.routes)
        self.sampled_tokens += len(completion.ids)

    def insert(self, delta: Sequence[int], pictures: Sequence[Picture] = ()) -> None:
        """Appends what the environment added, with mask 0. `pictures`: of the ids among them that stand for images."""
        self._open.insert(delta)
        self._open.pictures = [*self._open.pictures, *pictures]

    def compact(
        self, prompt_ids: Sequence[int], messages: Sequence[Message] = (), pictures: Sequence[Picture] = ()
    ) -> None:
        """Continues from another prompt, on purpose. It opens a segment even where it happens to fit."""
        self._open.context.settle()
        self._finished.append(self._open)
        self._open = _OpenSegment(prompt_ids, messages, "compaction", pictures)

    def end_turn(self, turn: Turn) -> None:
        inherited = len(self._turns) < self._inherited
        self._turns.append(msgspec.structs.replace(turn, left_out=INHERITED) if inherited else turn)

    def trajectory(
        self,
        *,
        stop_reason: str,
        truncated_by: str | None,
        sampling: Sampling,
        tools: Sequence[Mapping[str, Any]] = (),
        show: Callable[[Sequence[int]], str] = lambda _: "",
    ) -> Trajectory:
        """The finished record. `show` decodes prompts for people."""
        all_of = (*self._finished, self._open)
        pictures = [picture for segment in all_of for picture in segment.read]
        images = [each.image for place, each in enumerate(pictures) if each.image not in _before(pictures, place)]
        return Trajectory(
            segments=[segment.closed(show, images) for segment in all_of],
            turns=self._turns,
            stop_reason=stop_reason,
            truncated_by=truncated_by,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            tools=list(tools),
            images=images,
            image_id=pictures[0].pad if pictures else None,
        )


def _before(pictures: Sequence[Picture], place: int) -> list[PromptImage]:
    return [each.image for each in pictures[:place]]


def verified(completion: Completion, sent: int) -> Sequence[CompletionSpan]:
    """Spans of a completion by sampler. Raises `MalformedAnswer` when the answer does not fit what was sent."""
    if len(completion.ids) != len(completion.logprobs):
        lengths = f"{len(completion.ids)} ids and {len(completion.logprobs)} log-probabilities"
        raise MalformedAnswer(f"backend {completion.backend!r} answered {lengths}; they must be as many")
    if completion.prompt_tokens is not None and completion.prompt_tokens != sent:
        counted = f"counted {completion.prompt_tokens} prompt tokens where {sent} were sent"
        raise MalformedAnswer(f"backend {completion.backend!r} {counted}; does it change prompts?")
    return _spans(completion)


def _spans(completion: Completion) -> Sequence[CompletionSpan]:
    """Spans of a completion by sampler: the answer's, else one. Raises `MalformedAnswer` when tokens are left out."""
    count = len(completion.ids)
    if not completion.spans:
        whole = CompletionSpan(start=0, end=count, backend=completion.backend, version=completion.version)
        return [whole] if count else []
    ends = [0, *(span.end for span in completion.spans)]
    starts = [*(span.start for span in completion.spans), count]
    if starts != ends or sorted(ends) != ends:
        told = ", ".join(f"[{span.start}, {span.end})" for span in completion.spans)
        raise MalformedAnswer(f"backend {completion.backend!r}: spans {told} do not make up {count} tokens")
    return [span for span in completion.spans if span.end > span.start]
