"""Tokens of a turn that have arrived while it is still being sampled, so that a cut costs none of them."""

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from prorl_mq.schema.trajectory import joined_routes
from prorl_mq.schema.turns import CompletionSpan
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.answers import check_values
from workers.inference.protocols.spans import first_and_last

UNCOUNTED: Final = "counts no tokens in the events of its streams: what has arrived of a cut answer may lack some"


class TokensLost(MalformedAnswer):
    """A stream has left tokens out, as some servers do that send several at once."""


class CallTokens:
    """Tokens of one call, as its backend streams them: it was asked for `most`. `raw`: their log-probabilities are of
    another distribution. `version`: that of all of them, where its stream `tells` none of theirs. `certain` asks for
    the one that is certain at a moment, and `before` was it before the call: it is theirs where their stream tells none
    and both are one.
    """

    def __init__(
        self,
        backend: str,
        *,
        most: int,
        version: str | None = None,
        tells: bool = True,
        raw: bool = False,
        before: str | None = None,
        certain: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self.backend = backend
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.unable = ""  # why its backend does not stream, or its stream is of no use
        self.whole = True  # its backend is not known to leave tokens out
        self._most = most
        self._counted = 0  # of its tokens were held against a count of the backend's
        self._version = version
        self._tells = tells
        self._raw = raw
        self._certain = before, certain
        self._told: list[tuple[int, str | None]] = []  # how many there were, and the version that was told with them
        self._before: str | None = None
        self._began = self._last = time.perf_counter()

    def add(self, ids: Sequence[int], logprobs: Sequence[float], version: str | None = None) -> None:
        """Notes the next tokens. `version`: of the weights when the last of them was sent.

        Raises `MalformedAnswer` for what no answer may have: a cut one is used without its end.
        """
        check_values(self.backend, ids, logprobs, max_tokens=self._most, before=len(self.ids))
        self._last = time.perf_counter()
        self.ids += ids
        self.logprobs += logprobs
        self._told.append((len(self.ids), version))

    def counted(self, backend: str, told: int | None) -> None:
        """Holds its tokens against the backend's count, where it tells one. Raises `TokensLost`."""
        if told is None:
            return
        if told != len(self.ids):
            raise TokensLost(
                f"backend {backend}: its stream had {len(self.ids)} tokens, and it says that it has sampled {told}"
            )
        self._counted = told

    @property
    def held(self) -> bool:
        """All of its tokens were held against a count: none of them lacks."""
        return self._counted == len(self.ids)

    def since(self, version: str | None) -> None:
        """Notes the version that was told before the call."""
        self._before = version

    @property
    def seconds(self) -> float:
        """From the start of the call to its newest token."""
        return self._last - self._began

    async def part(self) -> Completion | None:
        """The tokens as those of a call that its backend has aborted; None without any, or where some may lack."""
        if not self.ids or not self.whole:
            return None
        if not self.held:
            self.unable = UNCOUNTED
            return None
        before, certain = self._certain
        after = await certain() if before is not None and certain is not None else None
        spans = self._spans(before if before == after else None)
        return Completion(
            ids=list(self.ids),
            logprobs=list(self.logprobs),
            finish_reason="abort",
            backend=self.backend,
            version=first_and_last(spans),
            spans=spans,
            seconds=self.seconds,
        )

    def _spans(self, certain: str | None) -> list[CompletionSpan]:
        """Versions do not come back: tokens between two chunks that tell the same one were sampled with it."""
        if not self._tells or all(version is None for _, version in self._told):
            version = certain if self._tells else self._version
            return [self._span(0, len(self.ids), version, version)]
        spans: list[CompletionSpan] = []
        for (start, first), (end, last) in pairwise([(0, self._before or certain), *self._told]):
            if end == start:
                continue
            if spans and first is not None and spans[-1].version == (first, last):
                spans[-1] = msgspec.structs.replace(spans[-1], end=end)
            else:
                spans.append(self._span(start, end, first, last))
        return spans

    def _span(self, start: int, end: int, first: str | None, last: str | None) -> CompletionSpan:
        version = (first, last) if first is not None and last is not None else None
        return CompletionSpan(start=start, end=end, backend=self.backend, version=version, raw_logprobs=self._raw)


class Arrived:
    """Tokens of one turn that have arrived so far, over all calls for it. `before`: those of an attempt before."""

    def __init__(self, before: Completion | None = None) -> None:
        self.kept = before  # of calls that are over
        self.call: CallTokens | None = None  # the one under way
        self.unable: Callable[[str], None] = lambda _: None  # is told why a turn would start again if it were cut

    async def so_far(self) -> Completion | None:
        """All of them, as a part of a turn; None without any."""
        while True:
            call, kept = self.call, self.kept
            now = await call.part() if call is not None else None
            if call is self.call and kept is self.kept:  # else those of the call are kept by now, or are not to be used
                return joined(kept, now) if kept is not None and now is not None else kept or now


def joined(first: Completion, then: Completion) -> Completion:
    """Two parts of one turn. The counts of the prompt are the first's; the spans say which backend sampled what."""
    moved = len(first.ids)
    spans = [*first.spans, *(_shifted(span, moved) for span in then.spans)]
    return Completion(
        ids=[*first.ids, *then.ids],
        logprobs=[*first.logprobs, *then.logprobs],
        finish_reason=then.finish_reason,
        stop_token=then.stop_token,
        backend=then.backend,
        version=first_and_last(spans),
        spans=spans,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        seconds=first.seconds + then.seconds,
        routes=joined_routes(first.routes, then.routes),
    )


def finished(part: Completion, stop_ids: Sequence[int], max_tokens: int) -> Completion:
    """A part as the whole turn, where it has its last token: what was cut was the word that it is the last."""
    if part.finish_reason != "abort":
        return part
    if part.ids and part.ids[-1] in stop_ids:
        return msgspec.structs.replace(part, finish_reason="stop", stop_token=part.ids[-1])
    return msgspec.structs.replace(part, finish_reason="length") if len(part.ids) >= max_tokens else part


def _shifted(span: CompletionSpan, by: int) -> CompletionSpan:
    return msgspec.structs.replace(span, start=span.start + by, end=span.end + by)
