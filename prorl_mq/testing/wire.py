"""The wire protocols as a backend sees them: requests read, answers written."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from prorl_mq.process.http_server import HttpResponse
from prorl_mq.testing import sglang
from prorl_mq.testing.experts import FakeExperts
from prorl_mq.testing.sampling import FakeSampling

VLLM_GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
PRORL_GENERATE = "/generate"
SGLANG_GENERATE = "sglang:/generate"  # the same path; its body has other fields
SERVER_PREFIX = "generate-tokens-"


class FakeFault(StrEnum):
    """Fault of a generating request."""

    REFUSED = "refused"  # 400: the request is wrong
    BUSY = "busy"  # 429
    ERROR = "error"  # 500, and the connection is dropped, as vLLM does when its engine dies
    RESET = "reset"  # the connection drops with nothing answered
    CUT = "cut"  # the connection drops within the answer
    DRIP = "drip"  # the answer comes a byte at a time
    HANG = "hang"  # no answer until the client goes away
    WRONG_LENGTHS = "wrong_lengths"  # one log-probability too few
    WRONG_IDS = "wrong_ids"  # log-probabilities of other ids
    OUT_OF_ORDER = "out_of_order"  # log-probabilities of the same ids, in another order (where they name ids)
    WRONG_VERSIONS = "wrong_versions"  # spans of weight versions that leave tokens out
    NAN = "nan"
    NO_LOGPROBS = "no_logprobs"
    WRONG_PROMPT = "wrong_prompt"  # another number of prompt tokens is counted
    GARBAGE = "garbage"  # 200 with something that is not JSON


class GenerateCall(msgspec.Struct, frozen=True, kw_only=True):
    """A generating request, whatever its route."""

    route: str
    request_id: str
    prompt_ids: Sequence[int]
    params: FakeSampling
    model: str | None
    cache_salt: str
    raw: dict[str, Any]


class FakeCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Content of an answer."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
    cached_tokens: int
    versions: Sequence[tuple[str, int, int]]  # version, start, end


class RequestError(Exception):
    """The request does not fit its route; answered as 400."""


def error_answer(status: int, message: str) -> HttpResponse:
    """An error as vLLM words it."""
    body = {"error": {"message": message, "code": status}}
    return HttpResponse(status=status, body=msgspec.json.encode(body))


def read_call(route: str, body: bytes, header_id: str | None, fallback_id: str) -> GenerateCall:
    """Raises `RequestError`."""
    if route == SGLANG_GENERATE:
        return _sglang_call(body, fallback_id)
    prompt_key = {VLLM_GENERATE: "token_ids", COMPLETIONS: "prompt", PRORL_GENERATE: "prompt_ids"}[route]
    try:
        raw = msgspec.json.decode(body, type=dict[str, Any])
        sampling = raw["sampling_params"] if route == VLLM_GENERATE else raw
        params = msgspec.convert(sampling, FakeSampling)
        prompt = msgspec.convert(raw[prompt_key], list[int])
    except KeyError as error:
        raise RequestError(f"{route}: field {error} is missing") from error
    except msgspec.MsgspecError as error:
        raise RequestError(f"{route}: {error}") from error
    if not prompt or min(prompt) < 0:
        raise RequestError(f"{route}: {prompt_key} must be a list of at least one id, none negative")
    return GenerateCall(
        route=route,
        request_id=header_id or str(raw.get("request_id") or fallback_id),
        prompt_ids=prompt,
        params=params,
        model=raw.get("model"),
        cache_salt=str(raw.get("cache_salt") or ""),
        raw=raw,
    )


def _sglang_call(body: bytes, fallback_id: str) -> GenerateCall:
    try:
        asked, params = sglang.read(body)
    except sglang.SglangError as error:
        raise RequestError(str(error)) from error
    return GenerateCall(
        route=SGLANG_GENERATE,
        request_id=asked.rid or fallback_id,
        prompt_ids=sglang.expanded(asked),
        params=params,
        model=asked.lora_path,
        cache_salt=asked.cache_salt or "",
        raw=msgspec.json.decode(body),
    )


def _usage(call: GenerateCall, sampled: FakeCompletion) -> dict[str, Any]:
    prompt, completion = len(call.prompt_ids), len(sampled.ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sampled.cached_tokens},
    }


def _vllm(call: GenerateCall, sampled: FakeCompletion, *, old_shape: bool) -> dict[str, Any]:
    pairs = zip(sampled.ids, sampled.logprobs, strict=True)
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": logprob} if old_shape else {"token_id": token, "logprob": logprob}
        for token, logprob in pairs
    ]
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": sampled.finish_reason,
        "stop_reason": _stop_reason(call, sampled),
        "token_ids": list(sampled.ids),
        "logprobs": None if call.params.logprobs is None else {"content": content},
    }
    if not old_shape:
        choice["weight_versions"] = [
            {"version": version, "start": start, "end": end} for version, start, end in sampled.versions
        ]
    return {
        "request_id": SERVER_PREFIX + call.request_id,
        "model": call.model,
        "usage": _usage(call, sampled),
        "choices": [choice],
    }


def _completions(call: GenerateCall, sampled: FakeCompletion, ids_in: str) -> dict[str, Any]:
    """`ids_in`: where the server puts ids: vLLM in `token_ids`, others in `logprobs` or its `content`, or nowhere."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": "",
        "finish_reason": sampled.finish_reason,
        "stop_reason": _stop_reason(call, sampled),
        "logprobs": None,
    }
    if call.raw.get("return_token_ids"):
        choice |= {"token_ids": list(sampled.ids), "prompt_token_ids": list(call.prompt_ids)}
    if call.params.logprobs is not None:
        tokens = [f"token_id:{token}" for token in sampled.ids]
        choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(sampled.logprobs)}
    if ids_in != "token_ids":
        del choice["token_ids"], choice["prompt_token_ids"], choice["stop_reason"]
        choice["logprobs"] = _elsewhere(sampled, ids_in)
    return {"id": call.request_id, "model": call.model, "usage": _usage(call, sampled), "choices": [choice]}


def _elsewhere(sampled: FakeCompletion, ids_in: str) -> dict[str, Any]:
    words = [chr(97 + token % 26) for token in sampled.ids]
    if ids_in == "content":
        rows = zip(words, sampled.ids, sampled.logprobs, strict=True)
        return {"content": [{"token": word, "id": token, "logprob": logprob} for word, token, logprob in rows]}
    more = {"token_ids": list(sampled.ids)} if ids_in == "logprobs" else {}
    return {"tokens": words, "token_logprobs": list(sampled.logprobs), **more}


def _stop_reason(call: GenerateCall, sampled: FakeCompletion) -> int | None:
    last = sampled.ids[-1] if sampled.ids else None
    return last if sampled.finish_reason == "stop" and last in call.params.stop_token_ids else None


def write_answer(
    call: GenerateCall,
    sampled: FakeCompletion,
    *,
    old_shape: bool = False,
    version: str = "default",
    ids_in: str = "token_ids",
    fault: FakeFault | None = None,
    experts: FakeExperts | None = None,
) -> bytes:
    """The body of a 200, spoilt as `fault` says."""
    match call.route:
        case "/inference/v1/generate":
            answer = _vllm(call, sampled, old_shape=old_shape)
        case "/v1/completions":
            answer = _completions(call, sampled, ids_in)
        case "sglang:/generate":
            answer = sglang.write(call, sampled, version, old_shape=old_shape)
        case _:
            answer = {"response_ids": list(sampled.ids), "logprobs": list(sampled.logprobs)}
    if experts is not None:
        experts.tell(call, sampled, answer)
    if fault is None:
        return msgspec.json.encode(answer)
    _spoil(answer, fault)
    body = msgspec.json.encode(answer)
    # JSON has no NaN; Python's own json module writes it this way.
    return body.replace(b'"<nan>"', b"NaN") if fault is FakeFault.NAN else body


def _spoil(answer: dict[str, Any], fault: FakeFault) -> None:
    if "meta_info" in answer:
        _spoil_sglang(answer, fault)
        return
    choice = answer["choices"][0] if "choices" in answer else answer
    logprobs = choice["logprobs"]
    if fault is FakeFault.WRONG_PROMPT and "usage" in answer:
        answer["usage"]["prompt_tokens"] += 1
    elif fault is FakeFault.NO_LOGPROBS:
        choice["logprobs"] = None
    elif fault is FakeFault.WRONG_VERSIONS and "weight_versions" in choice:
        choice["weight_versions"][0]["start"] += 1
    elif logprobs is not None:
        _spoil_logprobs(choice, logprobs, fault)


def _spoil_sglang(answer: dict[str, Any], fault: FakeFault) -> None:
    meta = answer["meta_info"]
    entries = meta["output_token_logprobs"]
    match fault:
        case FakeFault.WRONG_PROMPT:
            meta["prompt_tokens"] += 1
        case FakeFault.NO_LOGPROBS:
            del meta["output_token_logprobs"]
        case FakeFault.WRONG_VERSIONS:
            meta["weight_versions"][0]["start"] += 1
        case FakeFault.WRONG_LENGTHS:
            entries.pop()
        case FakeFault.NAN:  # its encoder writes null for what is no number
            entries[-1][0] = None
        case FakeFault.OUT_OF_ORDER:
            entries.reverse()
        case FakeFault.WRONG_IDS:
            answer["output_ids"][0] += 1
        case _:
            pass


def _spoil_logprobs(choice: dict[str, Any], logprobs: Any, fault: FakeFault) -> None:
    rows: list[list[Any]] = [logprobs] if isinstance(logprobs, list) else list(logprobs.values())
    values = rows[-1]  # numbers, or entries that hold one
    match fault:
        case FakeFault.WRONG_LENGTHS:
            values.pop()
        case FakeFault.NAN if isinstance(values[-1], dict):
            values[-1]["logprob"] = "<nan>"
        case FakeFault.NAN:
            values[-1] = "<nan>"
        case FakeFault.OUT_OF_ORDER:
            for row in rows:
                row.reverse()
        case FakeFault.WRONG_IDS:
            choice["token_ids" if "token_ids" in choice else "response_ids"][0] += 1
        case _:
            pass
