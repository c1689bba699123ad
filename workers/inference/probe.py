"""Finds out what an address is: alive, with which models, speaking which protocol, with which log-probabilities."""

from collections.abc import Iterable

import msgspec

from workers.inference.assignment import Endpoint, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.logprobs import LogprobMode
from workers.inference.minimum import server_version
from workers.inference.protocol import Completion, InferenceError, MalformedAnswer
from workers.inference.protocols.answers import decode
from workers.inference.request import GenerateRequest
from workers.inference.transport import HttpTransport, normalise

PROBE_ID = 1  # in every vocabulary
CERTAIN = 1e-6  # a log-probability so near to 0 is that of a token without rival
COLD = 0.01  # the lowest temperature that vLLM does not raise


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about one address."""

    info: Endpoint
    models: tuple[str, ...] = ()
    server: str | None = None  # its name and version, where it tells
    version: str | None = None  # of the weights, where the protocol tells


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
        context_tokens = lengths.get(served) if served else None
        info = Endpoint(address=address, protocol=protocol, model=served, context_tokens=context_tokens)
        try:
            completion = await _one_token(clients, info, within_s, temperature=1.0, top_k=1)
            known = protocol is not WireProtocol.COMPLETIONS or any(entry.owned_by == "vllm" for entry in models)
            server = await server_version(clients.transport, address, protocol, within_s) if known else None
            mode = await _mode(clients, info, completion, within_s)
        except InferenceError as error:
            reasons.append(f"{protocol.value}: {error}")
            continue
        return Probed(
            info=msgspec.structs.replace(info, logprobs=mode),
            models=names,
            server=server,
            version=completion.version[1] if completion.version else None,
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


async def _mode(clients: InferenceClients, info: Endpoint, likeliest: Completion, within_s: float) -> LogprobMode:
    """The kind of a backend's log-probabilities, as single tokens show it. Raises `InferenceError`.

    With top-k 1 one token remains: its log-probability is 0 after filtering, and below 0 before it. Near temperature 0
    the likeliest token is drawn all the same: its log-probability is almost 0 where the temperature has been applied.
    A model that is certain of its token gives 0 each time, which looks processed; random or real weights are not.
    """
    if not likeliest.logprobs:
        raise MalformedAnswer(f"backend {info.address}: it sampled nothing for its probe")
    if likeliest.logprobs[0] > -CERTAIN:
        return LogprobMode.PROCESSED
    cold = await _one_token(clients, info, within_s, temperature=COLD, top_k=-1)
    nearly = bool(cold.logprobs) and cold.logprobs[0] > likeliest.logprobs[0] / 4
    return LogprobMode.SCALED if nearly else LogprobMode.RAW
