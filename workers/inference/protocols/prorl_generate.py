"""ProRL's token route, which a trainer serves itself: `POST /generate {prompt_ids}`.

The answer is `{"response_ids", "logprobs"}` and little else: no finish reason (read off the ids here), no count of
prompt tokens, no versions, no stream. A backend that leaves the log-probabilities out cannot be used: the record needs
them.
"""

import time

import msgspec
from msgspec import UNSET, UnsetType

from workers.inference.assignment import Endpoint
from workers.inference.protocol import Completion, MalformedAnswer
from workers.inference.protocols.answers import check_tokens, decode, require_ok, whole
from workers.inference.protocols.sampling import SamplingFields, sampling_fields
from workers.inference.protocols.streams import say_whole
from workers.inference.request import GenerateRequest, ids_as_json
from workers.inference.routes import RoutesMissing
from workers.inference.transport import HttpTransport

ROUTE = "/generate"


class _Request(SamplingFields, kw_only=True):
    prompt_ids: msgspec.Raw
    skip_special_tokens: bool = False
    logprobs: bool = True
    model: str | UnsetType = UNSET


class _Answer(msgspec.Struct):
    response_ids: list[int]
    logprobs: list[float] | None = None
    finish_reason: str | None = None


def _finish(answer: _Answer, request: GenerateRequest) -> str:
    """Cut by the length unless the last id is one of the stop ids: the route has no word for it."""
    if answer.finish_reason is not None:
        return answer.finish_reason
    ids = answer.response_ids
    full = len(ids) >= request.max_tokens
    return "length" if full and ids[-1] not in request.stop_token_ids else "stop"


class ProrlGenerate:
    """Client of ProRL's token route."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(_Answer)

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling closes the connection."""
        if request.routes is not None:
            raise RoutesMissing(
                f"backend {backend.address}: {ROUTE} with prompt_ids has no routed experts, as the batch wants; "
                "serve the pool with vLLM or SGLang"
            )
        started = time.perf_counter()
        ids, model = ids_as_json(request.prompt_ids), backend.adapter or backend.model or UNSET
        wire = _Request(prompt_ids=ids, model=model, **sampling_fields(request))
        body = self._encoder.encode(wire)
        answer = await self._transport.post(backend.address, ROUTE, body, answer_s=request.answer_s)
        require_ok(backend.address, ROUTE, answer)
        say_whole(request.arrived)
        return self._read(backend.address, request, answer.body, time.perf_counter() - started)

    def _read(self, backend: str, request: GenerateRequest, body: bytes, seconds: float) -> Completion:
        answer = decode(backend, self._decoder, body)
        ids, logprobs = answer.response_ids, answer.logprobs
        if logprobs is None:
            raise MalformedAnswer(f"backend {backend}: {len(ids)} ids and no log-probabilities")
        finish = _finish(answer, request)
        check_tokens(backend, ids, logprobs, finish=finish, max_tokens=request.max_tokens)
        return Completion(
            ids=ids,
            logprobs=logprobs,
            finish_reason=finish,
            stop_token=ids[-1] if finish == "stop" else None,
            backend=backend,
            spans=whole(backend, len(ids)),
            seconds=seconds,
        )
