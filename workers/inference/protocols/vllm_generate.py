"""vLLM's token route: `POST /inference/v1/generate`.

Needs `--enable-scale-out`, and `--logprobs-mode processed_logprobs` for log-probabilities of the distribution that was
sampled from. Two wire shapes of a log-probability entry are read: `token_id` (0.32) and `token: "token_id:N"` (before).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from workers.inference.arrived import CallTokens
from workers.inference.assignment import Endpoint
from workers.inference.pictures import check_read, collapsed, parts
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.abort import Aborter
from workers.inference.protocols.answers import check_prompt, check_tokens, decode, only, require_ok
from workers.inference.protocols.sampling import SamplingFields, sampling_fields
from workers.inference.protocols.spans import WeightVersion, first_and_last, read_spans
from workers.inference.protocols.streams import (
    COUNTS,
    STREAM_INTERVAL,
    Lossy,
    check_count,
    ended,
    refuse_error,
    say_whole,
)
from workers.inference.request import GenerateRequest, ids_as_json
from workers.inference.routes import read_npy, with_routes
from workers.inference.transport import HttpTransport

ROUTE = "/inference/v1/generate"

_DIGITS = 10  # of an id: more than any vocabulary has


class _SamplingParams(SamplingFields, kw_only=True):
    logprobs: int = 0  # the sampled token's, and no others
    stream_interval: int | UnsetType = UNSET
    routed_experts_prompt_start: int | UnsetType = UNSET


class _Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    request_id: str
    token_ids: msgspec.Raw
    sampling_params: _SamplingParams
    model: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    stream_options: Mapping[str, bool] | None = None
    content_parts: Sequence[Mapping[str, str]] = ()  # images; then one id stands for each
    return_token_ids: bool = False


class _Entry(msgspec.Struct, gc=False):
    logprob: float
    token_id: int | None = None
    token: str | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry]


class _Choice(msgspec.Struct):
    token_ids: list[int]
    finish_reason: str
    logprobs: _Logprobs | None = None
    stop_reason: int | str | None = None
    weight_versions: list[WeightVersion] | None = None
    routed_experts: bytes | None = None  # a .npy file, in base64; of a stream with its last event alone


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class PromptUsage(msgspec.Struct):
    """The backend's own count of the prompt, here and in `/v1/completions`."""

    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prefix-cache hits; None unless vLLM runs with `--enable-prompt-tokens-details`."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: PromptUsage | None = None
    prompt_token_ids: list[int] | None = None  # with those of images in their places
    mm_placeholders: dict[str, list[dict[str, int]]] | None = None  # offset and length of each


class _Delta(msgspec.Struct):
    """The addition of one event of a stream."""

    token_ids: list[int] = []
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    stop_reason: int | str | None = None
    weight_versions: list[WeightVersion] | None = None
    routed_experts: bytes | None = None


class _Event(msgspec.Struct):
    choices: list[_Delta] = []
    usage: PromptUsage | None = None
    error: Any = None


class _Stream:
    """One answer, as its events tell it. Versions come with the last one alone."""

    def __init__(self, backend: str, tokens: CallTokens) -> None:
        self._backend = backend
        self._tokens = tokens
        self._last: _Delta | None = None
        self._usage: PromptUsage | None = None

    def event(self, data: bytes) -> None:
        """Raises `InferenceError`."""
        told = decode(self._backend, _EVENTS, data)
        refuse_error(self._backend, told.error)
        self._usage = told.usage or self._usage
        for delta in told.choices:
            if delta.token_ids:
                self._tokens.add(delta.token_ids, _read_logprobs(self._backend, delta))
            if delta.finish_reason is not None:
                self._last = delta
        if told.usage is not None:
            self._tokens.counted(self._backend, told.usage.completion_tokens)

    def answer(self) -> _Answer:
        """The whole, without log-probabilities. Raises `InferenceError` where its end has not come."""
        last = ended(self._backend, self._last)
        check_count(self._backend, self._tokens, self._usage.completion_tokens if self._usage else None)
        choice = _Choice(
            token_ids=self._tokens.ids,
            finish_reason=last.finish_reason or "",
            stop_reason=last.stop_reason,
            weight_versions=last.weight_versions,
            routed_experts=last.routed_experts,
        )
        return _Answer(choices=[choice], usage=self._usage)


_EVENTS: Final = msgspec.json.Decoder(_Event)


def named_token(text: str | None) -> int | None:
    """N of `token_id:N`, the form in which OpenAI-shaped answers name an id. A token's text may be digits, too."""
    prefix, _, number = (text or "").partition(":")
    return int(number) if prefix == "token_id" and number.isdecimal() and len(number) <= _DIGITS else None


def _read_logprobs(backend: str, choice: _Choice | _Delta) -> list[float]:
    """Their values, once every entry is known to belong to the id beside it."""
    if choice.logprobs is None:
        raise MalformedAnswer(f"backend {backend}: {len(choice.token_ids)} ids and no log-probabilities")
    entries = choice.logprobs.content
    named = [named_token(entry.token) if entry.token_id is None else entry.token_id for entry in entries]
    if named != choice.token_ids:
        raise MalformedAnswer(
            f"backend {backend}: {len(choice.token_ids)} ids but {len(named)} log-probabilities that belong to others; "
            f"at the start: {choice.token_ids[:8]} and {named[:8]}"
        )
    return [entry.logprob for entry in entries]


def stop_token(finish: str, stop_reason: int | str | None, ids: Sequence[int]) -> int | None:
    """The id that ended the completion. vLLM names no `stop_reason` for the model's own end token."""
    if finish != "stop" or not ids:
        return None
    return stop_reason if isinstance(stop_reason, int) else ids[-1]


class VllmGenerate:
    """Client of the token route."""

    def __init__(self, transport: HttpTransport, aborter: Aborter) -> None:
        self._transport = transport
        self._aborter = aborter
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(_Answer)
        self._lossy = Lossy()

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling closes the connection and posts an abort."""
        started = time.perf_counter()
        tokens = None if request.pictures else self._lossy.streamed(backend.address, request.arrived)
        stream = _Stream(backend.address, tokens) if tokens is not None else None
        events = stream.event if stream is not None else None
        encode = partial(self._encode, backend, request, streams=stream is not None)
        body = await asyncio.to_thread(encode) if request.pictures else encode()  # base64 of up to 32 MiB
        try:
            answer = await self._lossy.post(self._transport, backend.address, ROUTE, body, request, events)
        except asyncio.CancelledError:
            await self._aborter.abort(backend, request.request_id)
            raise
        require_ok(backend.address, ROUTE, answer)
        seconds = time.perf_counter() - started
        if stream is None or tokens is None or answer.body:
            read = decode(backend.address, self._decoder, answer.body)
            logprobs = _read_logprobs(backend.address, only(backend.address, read.choices))
            say_whole(tokens)
        else:
            with self._lossy.counting(backend.address):
                read, logprobs = stream.answer(), tokens.logprobs
        completion = _completion(backend.address, request, read, logprobs, seconds)
        return await with_routes(backend.address, request, completion, read.choices[0].routed_experts, read_npy)

    def _encode(self, backend: Endpoint, request: GenerateRequest, *, streams: bool) -> bytes:
        interval, pictured = STREAM_INTERVAL if streams else UNSET, bool(request.pictures)
        wire = _Request(
            request_id=request.request_id,
            token_ids=ids_as_json(collapsed(request.prompt_ids, request.pictures) if pictured else request.prompt_ids),
            content_parts=parts(request.pictures) if pictured else (),
            return_token_ids=pictured,
            sampling_params=_SamplingParams(
                **sampling_fields(request),
                stream_interval=interval,
                routed_experts_prompt_start=UNSET if request.routes is None else request.routes.start,
            ),
            stream=streams,
            stream_options=COUNTS if streams else None,
            model=backend.adapter or backend.model,
            cache_salt=backend.cache_salt,
        )
        return self._encoder.encode(wire)


def _completion(
    backend: str, request: GenerateRequest, answer: _Answer, logprobs: Sequence[float], seconds: float
) -> Completion:
    choice, usage = only(backend, answer.choices), answer.usage
    finish = choice.finish_reason
    check_tokens(backend, choice.token_ids, logprobs, finish=finish, max_tokens=request.max_tokens)
    if request.pictures:
        check_read(backend, request, answer.prompt_token_ids, answer.mm_placeholders)
    check_prompt(backend, usage.prompt_tokens if usage else None, len(request.prompt_ids))
    spans = read_spans(backend, len(choice.token_ids), choice.weight_versions)
    return Completion(
        ids=choice.token_ids,
        logprobs=logprobs,
        finish_reason=finish,
        stop_token=stop_token(finish, choice.stop_reason, choice.token_ids),
        backend=backend,
        version=first_and_last(spans),
        spans=spans,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        seconds=seconds,
    )
