"""From the forest of an attempt to its trajectory: a segment for each leaf, in which a completion is trained once.

The leaf with most trained tokens takes all of its path; the others begin where theirs leaves what was taken. What is
not trained (superseded, unread, side) stands in segments of its own with mask 0: on record, and in no row.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise

import msgspec

from prorl_mq.schema.images.placed import PlacedImage, PromptImage
from prorl_mq.schema.trajectory import ExpertRoutes, PromptMessage, Segment, Span, Turn, joined_routes
from workers.agent.hermes import Message
from workers.external.forest import Node, left_out, pictures_of, twins_of
from workers.external.prompting import Prompt

Show = Callable[[Sequence[int]], str]


class LeafPath(msgspec.Struct, frozen=True, kw_only=True):
    """A path from a rendered prompt to a leaf, of which it owns what comes from number `first` on."""

    path: Sequence[Node]
    first: int

    @property
    def own(self) -> Sequence[Node]:
        return self.path[self.first :]


def rows_of(sampled: Sequence[Node], why: Mapping[int, str]) -> list[LeafPath]:
    """Each completion in exactly one row, rows in the order of their first own completion."""
    inner = {each.base.number for each in sampled if each.base is not None and not why[each.number]}
    left = {each.base.number for each in sampled if each.base is not None and why[each.number]}
    trained = [each for each in sampled if not why[each.number] and each.number not in inner]
    others = [each for each in sampled if why[each.number] and each.number not in inner | left]
    paths = [each.path() for each in trained]
    paths.sort(key=lambda path: -sum(len(each.ids) for each in path))
    taken: set[int] = set()
    found: list[LeafPath] = []
    for path in [*paths, *(each.path() for each in others)]:
        first = next(place for place, each in enumerate(path) if each.number not in taken)
        taken.update(each.number for each in path)
        found.append(LeafPath(path=path, first=first))
    return sorted(found, key=lambda row: row.own[0].number)


def images_of(sampled: Sequence[Node]) -> list[PromptImage]:
    """All images that the model was shown, each once."""
    return list(dict.fromkeys(each.image for each in pictures_of(sampled)))


def unanswered(prompt: Prompt, show: Show) -> Segment:
    """The segment of a prompt that got no answer."""
    return Segment(
        prompt_ids=prompt.ids, response_ids=[], loss_mask=[], logprobs=[], prompt_text=show(prompt.ids),
        messages=_told(prompt.messages),
    )  # fmt: skip


def segments_and_turns(sampled: Sequence[Node], turns: Sequence[Turn], show: Show) -> tuple[list[Segment], list[Turn]]:
    """The segments, and the turns with their places in them. `turns` are by number of completion."""
    images = images_of(sampled)
    why = {node.number: left_out(node, twins) for node, twins in twins_of(sampled)}
    rows, placed = rows_of(sampled, why), list(turns)
    for number, row in enumerate(rows):
        for node in row.own:
            placed[node.number] = msgspec.structs.replace(
                placed[node.number], segment=number, left_out=why[node.number]
            )
        for node, after in pairwise(row.own):
            following = _told(after.messages)
            placed[node.number] = msgspec.structs.replace(placed[node.number], following=following)
    return [_segment(number, row, why, show, images) for number, row in enumerate(rows)], placed


def _segment(number: int, row: LeafPath, why: Mapping[int, str], show: Show, images: Sequence[PromptImage]) -> Segment:
    head, *rest = row.own
    prompt = [*(head.base.context() if head.base else ()), *head.prompt]
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float | None] = []
    spans: list[Span] = []
    for node in (head, *rest):
        if node is not head:
            ids += node.prompt
            mask += [0] * len(node.prompt)
            logprobs += [None] * len(node.prompt)
        trained, start = not why[node.number], len(ids)
        ids += node.ids
        mask += [int(trained)] * len(node.ids)
        logprobs += node.completion.logprobs if trained else [None] * len(node.ids)
        spans += [
            Span(
                start=start + each.start,
                end=start + each.end,
                backend=each.backend,
                version=each.version,
                raw_logprobs=each.raw_logprobs,
            )
            for each in node.spans
            if trained
        ]
    end = spans[-1].end if spans else len(ids)  # no model ever answered what follows the last one
    opened = "branch" if row.first and head.opened == "other" else head.opened
    return Segment(
        prompt_ids=prompt,
        response_ids=ids[:end],
        loss_mask=mask[:end],
        logprobs=logprobs[:end],
        spans=spans,
        opened_by="start" if number == 0 else opened,
        prompt_text=show(prompt),
        messages=_before(row),
        keeps_thinking=any(node.keeps_thinking for node in row.path),
        routes=_routes(row.path, len(prompt) + end - 1),
        images=[
            PlacedImage(image=images.index(each.image), start=each.start, length=each.length)
            for each in pictures_of(row.path)
            if each.start < len(prompt) + end
        ],
    )


def _routes(path: Sequence[Node], end: int) -> ExpertRoutes | None:
    """Those of a path's tokens in front of `end`: each completion brought the ones behind the completion before it."""
    found = reduce(joined_routes, (node.completion.routes for node in path))
    return found and found.until(end)


def _before(row: LeafPath) -> list[PromptMessage]:
    """The messages that the prompt of a row was made of, completions among them."""
    found = _told(row.path[0].messages)
    for before, node in pairwise(row.path[: row.first + 1]):
        found += [PromptMessage(role="assistant", content=before.said.message().content), *_told(node.messages)]
    return found


def _told(messages: Sequence[Message]) -> list[PromptMessage]:
    return [PromptMessage(role=each.role, content=each.content) for each in messages]
