"""Finds out what an address is: alive, with which models, speaking which protocol, with which log-probabilities."""

from collections.abc import Iterable

import msgspec

from workers.inference.answers import decode
from workers.inference.assignment import Endpoint, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.protocol import Completion, InferenceError
from workers.inference.request import GenerateRequest
from workers.inference.transport import HttpTransport, normalise

PROBE_ID = 1  # in every vocabulary


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about one address."""

    info: Endpoint
    models: tuple[str, ...] = ()
    max_model_len: int | None = None  # tokens, as /v1/models says
    version: str | None = None  # of the weights, where the protocol tells
    processed_logprobs: bool | None = None  # None: this cannot be told


_MODELS = msgspec.json.Decoder(_Models)


async def probe(
    clients: InferenceClients,
    address: str,
    *,
    model: str | None = None,
    protocols: Iterable[WireProtocol] = tuple(WireProtocol),
    within_s: float = 30.0,
) -> Probed:
    """Samples one token in each protocol until one works. `model` chooses among several served ones.

    Raises `InferenceError` with what each protocol said when none works.
    """
    address = normalise(address)
    models = await _models(clients.transport, address, within_s)
    names = tuple(entry.id for entry in models)
    if model is not None and names and model not in names:
        wrong = InferenceError(
            f"backend {address}: it does not serve {model}", quoted=f"it serves {', '.join(names)}, not {model}"
        )
        raise clients.transport.fixed(address, wrong)
    served = model if model is not None else (names[0] if names else None)
    lengths = {entry.id: entry.max_model_len for entry in models}
    reasons: list[str] = []
    for protocol in protocols:
        info = Endpoint(address=address, protocol=protocol, model=served)
        try:
            completion = await _one_token(clients, info, within_s, temperature=1.0, top_k=1)
        except InferenceError as error:
            reasons.append(f"{protocol.value}: {error}")
            continue
        return Probed(
            info=info,
            models=names,
            max_model_len=lengths.get(served) if served else None,
            version=completion.version[1] if completion.version else None,
            processed_logprobs=_processed(completion),
        )
    raise InferenceError(f"backend {address}: it speaks no known protocol. " + "; ".join(reasons))


async def _models(transport: HttpTransport, address: str, within_s: float) -> list[_Model]:
    """The models of `/v1/models`; none where there is no such route. An address that is down raises."""
    try:
        answer = await transport.get(address, "/v1/models", answer_s=within_s)
        return decode(address, _MODELS, answer.body).data if answer.status == 200 else []
    except InferenceError as error:
        raise transport.fixed(address, error) from None


async def _one_token(
    clients: InferenceClients, info: Endpoint, within_s: float, *, temperature: float, top_k: int
) -> Completion:
    request = GenerateRequest(
        request_id=f"probe-{info.protocol.value}",
        session_id="probe",
        prompt_ids=[PROBE_ID],
        max_tokens=1,
        temperature=temperature,
        top_k=top_k,
        seed=0,
        answer_s=within_s,
    )
    return await clients.generate(info, request)


def _processed(completion: Completion) -> bool | None:
    """With top-k 1 one token remains: its log-probability is 0 after filtering, and below 0 before it.

    A model that is certain of its token gives 0 both ways, which looks processed; random or real weights are not.
    """
    if not completion.logprobs:
        return None
    return completion.logprobs[0] > -1e-6
