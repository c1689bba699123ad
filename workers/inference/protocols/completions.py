"""OpenAI's route, where a server takes and returns token ids: `POST /v1/completions`.

Any vLLM that knows `return_token_ids` speaks it without a flag. Others put the ids elsewhere; a server that returns
text alone is refused. No weight versions are told, and a request can be aborted by closing its connection alone.
"""

import time
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from workers.inference.assignment import Endpoint
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.answers import check_prompt, check_tokens, decode, only, require_ok, whole
from workers.inference.protocols.sampling import SamplingFields, sampling_fields
from workers.inference.protocols.vllm_generate import PromptUsage, named_token, stop_token
from workers.inference.request import GenerateRequest
from workers.inference.transport import HttpTransport

ROUTE: Final = "/v1/completions"
NO_IDS: Final = (
    "They were looked for in choices[0].token_ids, logprobs.token_ids, logprobs.content (id, token_id) and "
    "logprobs.tokens (token_id:N). Text alone cannot be trained on: serve the model with vLLM 0.10.2 or later, SGLang, "
    "or another server that returns ids"
)


class _Request(SamplingFields, kw_only=True):
    prompt: Sequence[int]
    request_id: str
    logprobs: int = 1  # 0 is read as none by some servers
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    model: str | UnsetType = UNSET
    cache_salt: str | UnsetType = UNSET


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


class _Choice(msgspec.Struct):
    finish_reason: str
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    stop_reason: int | str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: PromptUsage | None = None


def _named(ids: Sequence[int | None] | None) -> list[int] | None:
    """The ids where there is one for each token."""
    known = [each for each in ids or () if each is not None]
    return known if ids is not None and len(known) == len(ids) else None


def _read_ids(backend: str, choice: _Choice) -> list[int]:
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


def _read_logprobs(backend: str, choice: _Choice) -> list[float]:
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

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling closes the connection, which aborts the request."""
        started = time.perf_counter()
        headers = {"x-session-id": request.session_id}
        body = self._encode(backend, request)
        answer = await self._transport.post(backend.address, ROUTE, body, headers=headers, answer_s=request.answer_s)
        require_ok(backend.address, ROUTE, answer)
        return self._read(backend.address, request, answer.body, time.perf_counter() - started)

    def _encode(self, backend: Endpoint, request: GenerateRequest) -> bytes:
        wire = _Request(
            prompt=request.prompt_ids,
            request_id=request.request_id,
            model=backend.adapter or backend.model or UNSET,
            cache_salt=backend.cache_salt or UNSET,
            **sampling_fields(request),
        )
        return self._encoder.encode(wire)

    def _read(self, backend: str, request: GenerateRequest, body: bytes, seconds: float) -> Completion:
        answer = decode(backend, self._decoder, body)
        choice, usage = only(backend, answer.choices), answer.usage
        ids = _read_ids(backend, choice)
        logprobs, finish = _read_logprobs(backend, choice), choice.finish_reason
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
