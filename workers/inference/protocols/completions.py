"""The fallback: `POST /v1/completions` with token ids in and out.

Any vLLM that knows `return_token_ids` speaks it without a flag. It tells no weight versions, and a request can be
aborted by closing its connection alone.
"""

import time
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from workers.inference.assignment import Endpoint
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.answers import check_prompt, check_tokens, decode, only, require_ok, whole
from workers.inference.protocols.sampling import SamplingFields, sampling_fields
from workers.inference.protocols.vllm_generate import PromptUsage, named_token, stop_token
from workers.inference.request import GenerateRequest
from workers.inference.transport import HttpTransport

ROUTE = "/v1/completions"


class _Request(SamplingFields, kw_only=True):
    prompt: Sequence[int]
    request_id: str
    logprobs: int = 1  # 0 is read as none by some servers
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    model: str | UnsetType = UNSET
    cache_salt: str | UnsetType = UNSET


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    finish_reason: str
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    stop_reason: int | str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: PromptUsage | None = None


def _read_ids(backend: str, choice: _Choice) -> list[int]:
    """The sampled ids, once the log-probabilities are known to name the same ones."""
    ids, logprobs = choice.token_ids, choice.logprobs
    if ids is None or logprobs is None:
        lacks = "token_ids" if ids is None else "logprobs"
        raise MalformedAnswer(f"backend {backend}: no {lacks} in the answer; it does not know `return_token_ids`")
    if [named_token(token) for token in logprobs.tokens] != ids:
        raise MalformedAnswer(
            f"backend {backend}: the log-probabilities belong to other ids than those sampled",
            quoted=f"{logprobs.tokens[:8]} and {ids[:8]} at the start",
        )
    return ids


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
        assert choice.logprobs is not None
        logprobs, finish = choice.logprobs.token_logprobs, choice.finish_reason
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
