"""SGLang's own route: `POST /generate {input_ids}`.

Its log-probabilities are scaled by the temperature, before top-p and top-k. It aborts by the *prefix* of an id, so ids
end with a character that no longer one has in that place. A request longer than the context is refused as a whole,
where others cut it short: the length is cut here.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from prorl_mq.schema.turns import CompletionSpan
from workers.inference.arrived import CallTokens
from workers.inference.assignment import Endpoint
from workers.inference.pictures import check_ids, collapsed, urls
from workers.inference.protocol import BackendRefused, Completion, ContextFull, InferenceError, MalformedAnswer
from workers.inference.protocols.abort import Aborter, sglang_id
from workers.inference.protocols.answers import check_prompt, check_tokens, decode, require_ok, whole
from workers.inference.protocols.sampling import NeutralFields
from workers.inference.protocols.spans import WeightVersion, first_and_last, read_spans
from workers.inference.protocols.streams import Lossy, check_count, ended, refuse_error, say_whole
from workers.inference.request import GenerateRequest, ids_as_json
from workers.inference.routes import read_int32, with_routes
from workers.inference.transport import HttpTransport

ROUTE: Final = "/generate"
_INTERVAL: Final = 64  # tokens of an event, each of which may repeat all before it
SPARE: Final = 1  # token of the context that a request may not ask for


class _SamplingParams(NeutralFields, kw_only=True):
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int  # -1: off; 0 is refused
    stop_token_ids: Sequence[int]
    sampling_seed: int | UnsetType = UNSET
    min_new_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = False
    no_stop_trim: bool = True
    stream_interval: int | UnsetType = UNSET


class _Request(msgspec.Struct, kw_only=True):
    rid: str
    input_ids: msgspec.Raw
    sampling_params: _SamplingParams
    return_logprob: bool = True
    logprob_start_len: int = -1  # none of the prompt's
    stream: bool = False
    cache_salt: str | UnsetType = UNSET
    lora_path: str | UnsetType = UNSET
    return_routed_experts: bool | UnsetType = UNSET
    routed_experts_start_len: int | UnsetType = UNSET
    image_data: Sequence[str] | UnsetType = UNSET  # data: URLs; then one id stands for each
    return_prompt_token_ids: bool | UnsetType = UNSET


class _Finish(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _MetaInfo(msgspec.Struct):
    finish_reason: _Finish | None = None
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | None = None
    weight_versions: list[WeightVersion] | None = None
    routed_experts: bytes | None = None  # int32 numbers, in base64


class _Answer(msgspec.Struct):
    meta_info: _MetaInfo
    output_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None  # with those of images in their places


class _Event(msgspec.Struct):
    meta_info: _MetaInfo | None = None
    error: Any = None


_EVENTS: Final = msgspec.json.Decoder(_Event)


class _Stream:
    """One answer, as its events tell it. Each has all tokens so far, or the new ones, as the server was started."""

    def __init__(self, backend: str, tokens: CallTokens, before: str | None) -> None:
        self._backend = backend
        self._tokens = tokens
        self._last: _MetaInfo | None = None
        self._tokens.since(before)

    def event(self, data: bytes) -> None:
        """Raises `InferenceError`."""
        told = decode(self._backend, _EVENTS, data)
        refuse_error(self._backend, told.error)
        meta = told.meta_info
        if meta is None:
            return
        if meta.finish_reason is not None:
            _refuse_fault(self._backend, meta.finish_reason)
            self._last = meta
        had, has = len(self._tokens.ids), meta.completion_tokens
        entries = meta.output_token_logprobs or []
        new = entries[had:] if has is not None and len(entries) == has else entries
        ids, logprobs = _read_tokens(self._backend, _Answer(msgspec.structs.replace(meta, output_token_logprobs=new)))
        self._tokens.add(ids, logprobs, meta.weight_version)
        self._tokens.counted(self._backend, has)

    def answer(self) -> _Answer:
        """The whole. Raises `InferenceError` where its end has not come."""
        pairs = zip(self._tokens.logprobs, self._tokens.ids, strict=True)
        entries: list[tuple[float | None, int, Any]] = [(logprob, token, None) for logprob, token in pairs]
        last = ended(self._backend, self._last)
        check_count(self._backend, self._tokens, last.completion_tokens)
        return _Answer(msgspec.structs.replace(last, output_token_logprobs=entries))


def _read_tokens(backend: str, answer: _Answer) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities, once both tell the same ids. Raises `MalformedAnswer`."""
    entries = answer.meta_info.output_token_logprobs
    if entries is None:
        raise MalformedAnswer(f"backend {backend}: no meta_info.output_token_logprobs, though return_logprob was sent")
    named = [token for _, token, _ in entries]
    ids = named if answer.output_ids is None else answer.output_ids
    if named != ids:
        raise MalformedAnswer(
            f"backend {backend}: {len(ids)} ids but {len(named)} log-probabilities that belong to others",
            quoted=f"at the start: {ids[:8]} and {named[:8]}",
        )
    logprobs = [logprob for logprob, _, _ in entries if logprob is not None]
    if len(logprobs) != len(ids):
        place = next(place for place, entry in enumerate(entries) if entry[0] is None)
        raise MalformedAnswer(f"backend {backend}: log-probability {place} is null")
    return ids, logprobs


def _refuse_fault(backend: str, finish: _Finish) -> None:
    """An abort with a status is an error that SGLang reports within a 200; a bare one has sampled what there is."""
    if finish.type != "abort" or finish.status_code is None:
        return
    kind = BackendRefused if 400 <= finish.status_code < 500 else InferenceError
    raise kind(f"backend {backend}: it aborted the call with {finish.status_code}", quoted=finish.message or "")


class SglangGenerate:
    """Client of SGLang's route."""

    def __init__(self, transport: HttpTransport, aborter: Aborter) -> None:
        self._transport = transport
        self._aborter = aborter
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(_Answer)
        self._lossy = Lossy()
        self._told: dict[str, str] = {}  # by address, the version that its last answer ended with

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling closes the connection and posts an abort."""
        started, before = time.perf_counter(), self._told.get(backend.address)
        tokens = None if request.pictures else self._lossy.streamed(backend.address, request.arrived)
        stream = _Stream(backend.address, tokens, before) if tokens is not None else None
        events = stream.event if stream is not None else None
        encode = partial(self._encode, backend, request, streams=stream is not None)
        body = await asyncio.to_thread(encode) if request.pictures else encode()  # base64 of up to 32 MiB
        try:
            answer = await self._lossy.post(self._transport, backend.address, ROUTE, body, request, events)
        except asyncio.CancelledError:
            await self._aborter.abort(backend, request.request_id)
            raise
        require_ok(backend.address, ROUTE, answer)
        if stream is None or answer.body:
            read = decode(backend.address, self._decoder, answer.body)
            say_whole(tokens)
        else:
            with self._lossy.counting(backend.address):
                read = stream.answer()
        completion = self._read(backend.address, request, read, before, time.perf_counter() - started)
        return await with_routes(backend.address, request, completion, read.meta_info.routed_experts, read_int32)

    def _encode(self, backend: Endpoint, request: GenerateRequest, *, streams: bool) -> bytes:
        pictured = bool(request.pictures)
        sampling = _SamplingParams(
            max_new_tokens=_length(backend, request),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k if request.top_k > 0 else -1,
            stop_token_ids=request.stop_token_ids,
            sampling_seed=UNSET if request.seed is None else request.seed,
            stream_interval=_INTERVAL if streams else UNSET,
        )
        wire = _Request(
            rid=sglang_id(request.request_id),
            input_ids=ids_as_json(collapsed(request.prompt_ids, request.pictures) if pictured else request.prompt_ids),
            image_data=urls(request.pictures) if pictured else UNSET,
            return_prompt_token_ids=pictured or UNSET,
            stream=streams,
            sampling_params=sampling,
            cache_salt=backend.cache_salt or UNSET,
            lora_path=backend.adapter or UNSET,
            return_routed_experts=UNSET if request.routes is None else True,
            routed_experts_start_len=UNSET if request.routes is None else request.routes.start,
        )
        return self._encoder.encode(wire)

    def _read(
        self, backend: str, request: GenerateRequest, answer: _Answer, before: str | None, seconds: float
    ) -> Completion:
        meta = answer.meta_info
        finish = meta.finish_reason
        if finish is None:
            raise MalformedAnswer(f"backend {backend}: its answer has no meta_info.finish_reason")
        _refuse_fault(backend, finish)
        ids, logprobs = _read_tokens(backend, answer)
        check_tokens(backend, ids, logprobs, finish=finish.type, max_tokens=request.max_tokens)
        if request.pictures:
            check_ids(backend, request, answer.prompt_token_ids)
        check_prompt(backend, meta.prompt_tokens, len(request.prompt_ids))
        spans = self._spans(backend, meta, len(ids), before)
        stopped = finish.type == "stop" and ids
        return Completion(
            ids=ids,
            logprobs=logprobs,
            finish_reason=finish.type,
            stop_token=(finish.matched if isinstance(finish.matched, int) else ids[-1]) if stopped else None,
            backend=backend,
            version=first_and_last(spans),
            spans=spans,
            prompt_tokens=meta.prompt_tokens,
            cached_tokens=meta.cached_tokens,
            seconds=seconds,
        )

    def _spans(self, backend: str, meta: _MetaInfo, count: int, before: str | None) -> list[CompletionSpan]:
        """By the spans that SGLang tells. One that tells only the version at the end has sampled all of the answer with
        it if it told the same before the call: versions do not come back. Else nothing is known.
        """
        end = meta.weight_version
        if end is not None:
            self._told[backend] = end
        if meta.weight_versions is not None:
            return read_spans(backend, count, meta.weight_versions)
        return whole(backend, count, (end, end) if end is not None and end == before else None)


def _length(backend: Endpoint, request: GenerateRequest) -> int:
    """The tokens to ask for. Raises `ContextFull`."""
    if backend.context_tokens is None:
        return request.max_tokens
    room = backend.context_tokens - len(request.prompt_ids) - SPARE
    if room < 1:
        raise ContextFull(
            f"backend {backend.address}: a prompt of {len(request.prompt_ids)} tokens fills its context of "
            f"{backend.context_tokens}"
        )
    return min(request.max_tokens, room)
