"""Completions cut short: a part of what was sampled is as exact as the whole."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec

from workers.inference.protocol import Completion


def cut(completion: Completion, tokens: int, finish_reason: str = "length") -> Completion:
    """The first tokens of a completion; itself where it has no more."""
    if len(completion.ids) <= tokens:
        return completion
    return msgspec.structs.replace(
        completion,
        ids=completion.ids[:tokens],
        logprobs=completion.logprobs[:tokens],
        spans=[
            msgspec.structs.replace(each, end=min(each.end, tokens)) for each in completion.spans if each.start < tokens
        ],
        finish_reason=finish_reason,
        stop_token=None,
        routes=completion.routes and completion.routes.until(completion.routes.end - len(completion.ids) + tokens),
    )


def cut_at(
    completion: Completion, stops: Sequence[str], said: Callable[[Sequence[int]], str]
) -> tuple[Completion, str | None]:
    """Up to the token that completes the first of some texts, and which text that is."""
    whole = said(completion.ids)
    found = [(whole.index(each), each) for each in stops if each in whole]
    if not found:
        return completion, None
    _, first = min(found)
    count = bisect_left(range(len(completion.ids)), True, key=lambda end: first in said(completion.ids[:end]))
    if count == len(completion.ids):  # nothing is cut, and yet the text is what ends it
        return msgspec.structs.replace(completion, finish_reason="stop"), first
    return cut(completion, count, "stop"), first
