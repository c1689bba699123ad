"""OpenAI's route, where a server takes and returns token ids: `POST /v1/completions`.

Any vLLM that knows `return_token_ids` speaks it without a flag. Others put the ids elsewhere; a server that returns
text alone is refused. No weight versions are told, and a request can be aborted by closing its connection alone.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from workers.inference.arrived import CallTokens
from workers.inference.assignment import Endpoint
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.answers import check_prompt, check_tokens, decode, only, require_ok, whole
from workers.inference.protocols.sampling import SamplingFields, sampling_fields
from workers.inference.protocols.streams import (
    COUNTS,
    STREAM_INTERVAL,
    Lossy,
    check_count,
    ended,
    refuse_error,
    say_whole,
)
from workers.inference.protocols.vllm_generate import PromptUsage, named_token, stop_token
from workers.inference.request import GenerateRequest, ids_as_json
from workers.inference.routes import read_int32, read_npy, with_routes
from workers.inference.transport import HttpTransport

ROUTE: Final = "/v1/completions"
NO_IDS: Final = (
    "They were looked for in choices[0].token_ids, logprobs.token_ids, logprobs.content (id, token_id) and "
    "logprobs.tokens (token_id:N). Text alone cannot be trained on: serve the model with vLLM 0.10.2 or later, SGLang, "
    "or another server that returns ids"
)


class _Request(SamplingFields, kw_only=True):
    prompt: msgspec.Raw
    request_id: str
    logprobs: int = 1  # 0 is read as none by some servers
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    model: str | UnsetType = UNSET
    cache_salt: str | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    stream_options: Mapping[str, bool] | UnsetType = UNSET
    stream_interval: int | UnsetType = UNSET
    routed_experts_prompt_start: int | UnsetType = UNSET  # vLLM's
    return_routed_experts: bool | UnsetType = UNSET  # SGLang's, as the next one
    routed_experts_start_len: int | UnsetType = UNSET


class _Entry(msgspec.Struct):
    """One of `logprobs.content`: llama.cpp's `id`, or `token_id`."""

    logprob: float | None
    id: int | None = None
    token_id: int | None = None


class _Logprobs(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    token_ids: list[int] | None = None
    content: list[_Entry] | None = None


class _Told(msgspec.Struct, kw_only=True):
    """Tokens, of an answer or of one event of a stream."""

    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    stop_reason: int | str | None = None
    text: str = ""


class _Choice(_Told, kw_only=True):
    finish_reason: str
    routed_experts: bytes | None = None  # vLLM's


class _Delta(_Told, kw_only=True):
    """The addition of one event of a stream."""

    finish_reason: str | None = None


class _Extension(msgspec.Struct):
    routed_experts: bytes | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: PromptUsage | None = None
    sglext: _Extension | None = None  # SGLang's


class _Event(msgspec.Struct):
    choices: list[_Delta] = []
    usage: PromptUsage | None = None
    error: Any = None


_EVENTS: Final = msgspec.json.Decoder(_Event)


class _Stream:
    """One answer, as its events tell it."""

    def __init__(self, backend: str, tokens: CallTokens) -> None:
        self._backend = backend
        self._tokens = tokens
        self._last: _Delta | None = None
        self._prompt: list[int] | None = None
        self._usage: PromptUsage | None = None

    def event(self, data: bytes) -> None:
        """Raises `InferenceError`."""
        told = decode(self._backend, _EVENTS, data)
        refuse_error(self._backend, told.error)
        self._usage = told.usage or self._usage
        for delta in told.choices:
            self._prompt = self._prompt or delta.prompt_token_ids
            if delta.token_ids or delta.logprobs is not None or delta.text:
                ids = _read_ids(self._backend, delta)
                logprobs = _read_logprobs(self._backend, delta) if ids else []
                self._tokens.add(ids, logprobs)
            if delta.finish_reason is not None:
                self._last = delta
        if told.usage is not None:
            self._tokens.counted(self._backend, told.usage.completion_tokens)

    def answer(self) -> _Answer:
        """The whole, without log-probabilities. Raises `InferenceError` where its end has not come."""
        last = ended(self._backend, self._last)
        check_count(self._backend, self._tokens, self._usage.completion_tokens if self._usage else None)
        choice = _Choice(
            finish_reason=last.finish_reason or "",
            token_ids=self._tokens.ids,
            prompt_token_ids=self._prompt,
            stop_reason=last.stop_reason,
        )
        return _Answer(choices=[choice], usage=self._usage)


def _named(ids: Sequence[int | None] | None) -> list[int] | None:
    """The ids where there is one for each token."""
    known = [each for each in ids or () if each is not None]
    return known if ids is not None and len(known) == len(ids) else None


def _read_ids(backend: str, choice: _Told) -> list[int]:
    """The sampled ids, from wherever servers put them: all places that have them must say the same."""
    logprobs, content = choice.logprobs or _Logprobs(), choice.logprobs.content if choice.logprobs else None
    entries = None if content is None else [each.id if each.token_id is None else each.token_id for each in content]
    names = None if logprobs.tokens is None else [named_token(each) for each in logprobs.tokens]
    places = (choice.token_ids, logprobs.token_ids, _named(entries), _named(names))
    told = [ids for ids in places if ids is not None]
    if not told:
        raise MalformedAnswer(f"backend {backend}: {ROUTE} returned no token ids. {NO_IDS}")
    if any(ids != told[0] for ids in told):
        raise MalformedAnswer(
            f"backend {backend}: the log-probabilities belong to other ids than those sampled",
            quoted=f"{told[-1][:8]} and {told[0][:8]} at the start",
        )
    return told[0]


def _read_logprobs(backend: str, choice: _Told) -> list[float]:
    """Raises `MalformedAnswer` where there are none, or one is null."""
    told = choice.logprobs or _Logprobs()
    values = told.token_logprobs
    if values is None and told.content is not None:
        values = [entry.logprob for entry in told.content]
    if values is None:
        raise MalformedAnswer(
            f"backend {backend}: {ROUTE} returned ids and no log-probabilities, though it was asked to"
        )
    known = [value for value in values if value is not None]
    if len(known) != len(values):
        raise MalformedAnswer(f"backend {backend}: log-probability {values.index(None)} is null")
    return known


class Completions:
    """Client of the OpenAI-shaped route."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(_Answer)
        self._lossy = Lossy()

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling closes the connection, which aborts the request."""
        started = time.perf_counter()
        tokens = self._lossy.streamed(backend.address, request.arrived)
        if request.routes is not None and tokens is not None:
            tokens.unable, tokens = "sends no routed experts with its streams", None
        stream = _Stream(backend.address, tokens) if tokens is not None else None
        events = stream.event if stream is not None else None
        body = self._encode(backend, request, streams=stream is not None)
        answer = await self._lossy.post(self._transport, backend.address, ROUTE, body, request, events)
        require_ok(backend.address, ROUTE, answer)
        seconds = time.perf_counter() - started
        if stream is None or tokens is None or answer.body:
            read = decode(backend.address, self._decoder, answer.body)
            choice = only(backend.address, read.choices)
            ids, logprobs = _read_ids(backend.address, choice), _read_logprobs(backend.address, choice)
            say_whole(tokens)
        else:
            with self._lossy.counting(backend.address):
                read = stream.answer()
            ids, logprobs = tokens.ids, tokens.logprobs
        completion = _completion(backend.address, request, read, ids, logprobs, seconds)
        if read.sglext is not None:
            return await with_routes(backend.address, request, completion, read.sglext.routed_experts, read_int32)
        return await with_routes(backend.address, request, completion, read.choices[0].routed_experts, read_npy)

    def _encode(self, backend: Endpoint, request: GenerateRequest, *, streams: bool) -> bytes:
        wire = _Request(
            prompt=ids_as_json(request.prompt_ids),
            request_id=request.request_id,
            model=backend.adapter or backend.model or UNSET,
            cache_salt=backend.cache_salt or UNSET,
            stream=streams or UNSET,
            stream_options=COUNTS if streams else UNSET,
            stream_interval=STREAM_INTERVAL if streams else UNSET,
            routed_experts_prompt_start=UNSET if request.routes is None else request.routes.start,
            return_routed_experts=UNSET if request.routes is None else True,
            routed_experts_start_len=UNSET if request.routes is None else request.routes.start,
            **sampling_fields(request),
        )
        return self._encoder.encode(wire)


def _completion(
    backend: str,
    request: GenerateRequest,
    answer: _Answer,
    ids: Sequence[int],
    logprobs: Sequence[float],
    seconds: float,
) -> Completion:
    choice, usage = only(backend, answer.choices), answer.usage
    finish = choice.finish_reason
    check_tokens(backend, ids, logprobs, finish=finish, max_tokens=request.max_tokens)
    check_prompt(backend, usage.prompt_tokens if usage else None, len(request.prompt_ids))
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(request.prompt_ids):
        raise MalformedAnswer(f"backend {backend}: it read other prompt ids than were sent")
    return Completion(
        ids=ids,
        logprobs=logprobs,
        finish_reason=finish,
        stop_token=stop_token(finish, choice.stop_reason, ids),
        backend=backend,
        spans=whole(backend, len(ids)),
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        seconds=seconds,
    )
