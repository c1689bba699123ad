"""Checks that every backend's answer must satisfy, whatever its protocol."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from prorl_mq.process.http_connection import HttpAnswer
from prorl_mq.schema.turns import CompletionSpan
from workers.inference.protocol import BackendRefused, ContextFull, InferenceError, MalformedAnswer

MAX_TOKEN_ID = (1 << 31) - 1
FINISH_REASONS = frozenset({"stop", "length", "abort"})
# The backend, not the request, is at fault: it lacks the route or the model, wants a key, or is too busy.
_ANOTHER_MAY_ANSWER = {
    403: "the route is closed; vLLM opens /inference/v1/generate with --enable-scale-out",
    404: "it has no such route or model; probe it again",
    405: "it has no such route; probe it again",
    408: "it gave up waiting",
    409: "it is in another state",
    429: "it has too many requests",
}
_FULL = (b"context length", b"maximum model length")  # what vLLM and SGLang call it, each route in its own words
_T = TypeVar("_T")


def _excerpt(body: bytes) -> str:
    return body[:300].decode(errors="replace")


def require_ok(backend: str, route: str, answer: HttpAnswer) -> None:
    """Raises `BackendRefused` when the request is wrong, `InferenceError` when another backend may take it."""
    if answer.status == 200:
        return
    said = f"backend {backend}: {route} answered {answer.status}"
    if answer.status in _ANOTHER_MAY_ANSWER:
        raise InferenceError(f"{said} ({_ANOTHER_MAY_ANSWER[answer.status]})", quoted=_excerpt(answer.body))
    if answer.status == 400 and any(words in answer.body for words in _FULL):
        raise ContextFull(f"{said}; the prompt fills its context", quoted=_excerpt(answer.body))
    if 400 <= answer.status < 500:
        raise BackendRefused(f"{said}; the request itself is wrong", quoted=_excerpt(answer.body))
    raise InferenceError(said, quoted=_excerpt(answer.body))


def decode(backend: str, decoder: "msgspec.json.Decoder[_T]", body: bytes) -> _T:
    """The typed answer. Raises `MalformedAnswer` naming the field that is wrong."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswer(f"backend {backend}: {error}; it sent", quoted=_excerpt(body)) from error


def only(backend: str, choices: Sequence[_T]) -> _T:
    """The one choice that was asked for. Raises `MalformedAnswer` for any other number."""
    if len(choices) != 1:
        raise MalformedAnswer(f"backend {backend}: {len(choices)} choices, one was asked for")
    return choices[0]


def whole(backend: str, count: int, version: tuple[str, str] | None = None) -> list[CompletionSpan]:
    """One span for all ids, as from a backend that tells no versions."""
    return [CompletionSpan(start=0, end=count, backend=backend, version=version)] if count else []


def check_tokens(backend: str, ids: Sequence[int], logprobs: Sequence[float], *, finish: str, max_tokens: int) -> None:
    """Raises `MalformedAnswer` unless the answer can go into a trajectory as it is."""
    check_values(backend, ids, logprobs, max_tokens=max_tokens)
    if finish not in FINISH_REASONS:
        known = f"finish_reason {finish[:80]!r} is none of {sorted(FINISH_REASONS)}"
        raise MalformedAnswer(f"backend {backend}: the completion ended for no known reason", quoted=known)
    if not ids and finish != "abort":
        raise MalformedAnswer(f"backend {backend}: no ids, yet finish_reason {finish!r}")


def check_values(
    backend: str, ids: Sequence[int], logprobs: Sequence[float], *, max_tokens: int, before: int = 0
) -> None:
    """The same of some tokens, behind `before` others."""
    if len(ids) != len(logprobs):
        raise MalformedAnswer(f"backend {backend}: {len(ids)} ids but {len(logprobs)} log-probabilities")
    if before + len(ids) > max_tokens:
        raise MalformedAnswer(f"backend {backend}: {before + len(ids)} ids, more than the {max_tokens} asked for")
    if ids and not (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
        raise MalformedAnswer(f"backend {backend}: ids from {min(ids)} to {max(ids)}, which no vocabulary has")
    if not all(map(math.isfinite, logprobs)):
        place = next(i for i, logprob in enumerate(logprobs) if not math.isfinite(logprob))
        raise MalformedAnswer(f"backend {backend}: log-probability {before + place} is {logprobs[place]}")


def check_prompt(backend: str, counted: int | None, sent: int) -> None:
    """Raises `MalformedAnswer` when the backend read another prompt than was sent."""
    if counted is not None and counted != sent:
        raise MalformedAnswer(f"backend {backend}: it counted {counted} prompt tokens, {sent} were sent")
