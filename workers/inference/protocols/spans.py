"""Which weights sampled which ids of an answer, as vLLM and SGLang tell it alike."""

from collections.abc import Sequence

import msgspec

from prorl_mq.schema.turns import CompletionSpan
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.answers import whole


class WeightVersion(msgspec.Struct):
    """One span on the wire: ids `[start, end)` by one version."""

    version: str | int
    start: int
    end: int


def read_spans(backend: str, count: int, told: Sequence[WeightVersion] | None) -> list[CompletionSpan]:
    """The spans of an answer of `count` ids. Raises `MalformedAnswer` unless every id has one version."""
    if told is None:
        return whole(backend, count)
    spans, at = [], 0
    for each in told:
        if each.start != at or each.end < at:
            break
        if each.end > at:
            version = str(each.version)
            spans.append(CompletionSpan(start=at, end=each.end, backend=backend, version=(version, version)))
        at = each.end
    if at != count:
        where = [(each.start, each.end) for each in told[:8]]
        raise MalformedAnswer(
            f"backend {backend}: weight versions at {where} do not cover {count} ids one after another"
        )
    return spans


def first_and_last(spans: Sequence[CompletionSpan]) -> tuple[str, str] | None:
    """The versions at both ends; None where any part does not tell."""
    versions = [span.version for span in spans if span.version is not None]
    return (versions[0][0], versions[-1][1]) if versions and len(versions) == len(spans) else None


def of_adapter(completion: Completion, version: str | None) -> Completion:
    """A completion by an adapter: its name says the version of all of it. What the answer tells is the base model's."""
    told = None if version is None else (version, version)
    spans = [msgspec.structs.replace(span, version=told) for span in completion.spans]
    return msgspec.structs.replace(completion, version=told, spans=spans)
