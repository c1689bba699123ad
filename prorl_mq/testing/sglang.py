"""SGLang's routes as a fake backend has them, and strictly: a field that SGLang does not define is refused.

Fields and defaults are those of `python/sglang/srt/managers/io_struct.py` and `sampling/sampling_params.py` at commit
001067fffe33427bee0ed2f007fb7551a1d76b44, of November 2026. They were read; no SGLang was run.
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from prorl_mq.process.http_server import HttpRequest
from prorl_mq.schema.images.header import shape_of
from prorl_mq.schema.images.rows import bytes_of
from prorl_mq.testing.sampling import FakeSampling

if TYPE_CHECKING:
    from prorl_mq.testing.fake_backend import FakeBackend
    from prorl_mq.testing.wire import FakeCompletion, GenerateCall

VERSION = "0.5.23"
IMAGE_ID = 11  # of its model's vocabulary


class SglangError(Exception):
    """The request is wrong; SGLang answers 400."""


class _Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    rid: str | None = None


class SglangSampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of `sampling_params` that callers may set."""

    max_new_tokens: int | None = 128
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    custom_params: dict[str, Any] | None = None
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        if self.top_k < 1 and self.top_k != -1:
            raise ValueError(f"top_k must be -1 (disable) or at least 1, got {self.top_k}.")


class GenerateReqInput(_Strict, kw_only=True):
    """The fields of `GenerateReqInput` that belong to text, ids and images."""

    session_id: str | None = None
    text: str | None = None
    input_ids: list[int] | None = None
    image_data: list[str] | None = None
    sampling_params: SglangSampling
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: list[int] | None = None
    return_sampling_mask: bool | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    log_metrics: bool = True
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    lora_path: str | None = None
    routing_key: str | None = None
    conversation_id: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    no_logs: bool = False
    return_prompt_token_ids: bool = False
    cache_salt: str | None = None


class AbortReq(_Strict, kw_only=True):
    """`/abort_request`: by the prefix of an id."""

    abort_all: bool = False
    abort_message: str | None = None


class PauseGenerationReqInput(_Strict, kw_only=True):
    """`/pause_generation`."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueGenerationReqInput(_Strict, kw_only=True):
    """`/continue_generation`."""

    torch_empty_cache: bool = True


class UpdateWeightFromDiskReqInput(_Strict, kw_only=True):
    """`/update_weights_from_disk`."""

    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: str | None = None
    is_async: bool = False
    torch_empty_cache: bool = False
    keep_pause: bool = False
    recapture_cuda_graph: bool = False
    token_step: int = 0
    flush_cache: bool = True
    manifest: dict[str, Any] | None = None


class UpdateWeightVersionReqInput(_Strict, kw_only=True):
    """`/update_weight_version`."""

    new_version: str
    abort_all_requests: bool = True


class LoadLoRAAdapterReqInput(_Strict, kw_only=True):
    """`/load_lora_adapter`."""

    lora_name: str
    lora_path: str
    pinned: bool = False


class UnloadLoRAAdapterReqInput(_Strict, kw_only=True):
    """`/unload_lora_adapter`."""

    lora_name: str


def expanded(asked: GenerateReqInput) -> list[int]:
    """The ids with those of images in the places of `IMAGE_ID`: one for each 28 by 28 pixels."""
    images = iter(asked.image_data or ())
    return [
        made
        for each in asked.input_ids or ()
        for made in ([each] * _count(next(images, "")) if each == IMAGE_ID and asked.image_data else [each])
    ]


def _count(image: str) -> int:
    if not image:
        return 1
    shape = shape_of(bytes_of(image).data)
    return max(1, round(shape.width / 28) * round(shape.height / 28))


def read(body: bytes) -> tuple[GenerateReqInput, FakeSampling]:
    """The request, and its sampling in the form of all protocols. Raises `SglangError`."""
    try:
        asked = msgspec.json.decode(body, type=GenerateReqInput)
    except msgspec.MsgspecError as error:
        raise SglangError(str(error)) from error
    if asked.input_ids is None:
        raise SglangError("Either text, input_ids or input_embeds should be provided.")
    params = asked.sampling_params
    return asked, FakeSampling(
        max_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=max(params.top_k, 0),
        seed=params.sampling_seed,
        stop_token_ids=params.stop_token_ids or [],
        logprobs=asked.return_logprob,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )


def write(call: "GenerateCall", sampled: "FakeCompletion", version: str, *, old_shape: bool) -> dict[str, Any]:
    """The body of a 200. `old_shape`: without spans of versions, as before they were added."""
    last = sampled.ids[-1] if sampled.ids else None
    finish: dict[str, Any] = {"type": sampled.finish_reason}
    match sampled.finish_reason:
        case "stop":
            finish["matched"] = last
        case "length":
            finish["length"] = len(sampled.ids)
        case "abort":
            finish |= {"message": "Aborted", "status_code": None, "err_type": None}
        case _:
            pass
    meta: dict[str, Any] = {
        "id": call.request_id,
        "finish_reason": finish,
        "prompt_tokens": len(call.prompt_ids),
        "completion_tokens": len(sampled.ids),
        "cached_tokens": sampled.cached_tokens,
        "weight_version": version,
    }
    if call.params.logprobs:
        pairs = zip(sampled.logprobs, sampled.ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    if not old_shape:
        meta["weight_versions"] = [
            {"version": version, "start": start, "end": end} for version, start, end in sampled.versions
        ]
    told = {"prompt_token_ids": list(call.prompt_ids)} if call.raw.get("return_prompt_token_ids") else {}
    return {"text": "", "output_ids": list(sampled.ids), "meta_info": meta, **told}


def look(backend: "FakeBackend", path: str) -> dict[str, Any] | None:
    """An answer of SGLang about itself; None for a path that is not its own."""
    match path:
        case "/model_info":
            return {"model_path": backend.model, "weight_version": backend.version}
        case "/server_info":
            return {"version": backend.engine_version or VERSION}
        case _:
            return None


async def act(backend: "FakeBackend", request: HttpRequest) -> dict[str, Any] | None:
    """Carries out a control route of SGLang's; None for a path that is none of them. Raises `SglangError`."""
    said: dict[str, Any] | None = {"success": True}
    match request.path:
        case "/abort_request":
            asked = _read(request, AbortReq)
            backend.aborts.append(asked.rid or "*")
            backend.abort_prefix("" if asked.abort_all else asked.rid or "\0")
        case "/pause_generation":
            modes = {"in_place": "keep", "retract": "keep", "abort": "abort"}
            await backend.pause(modes[_read(request, PauseGenerationReqInput).mode])
        case "/continue_generation":
            _read(request, ContinueGenerationReqInput)
            backend.resume()
        case "/update_weights_from_disk":
            said = await _load(backend, _read(request, UpdateWeightFromDiskReqInput))
        case "/update_weight_version":
            said = _rename(backend, _read(request, UpdateWeightVersionReqInput))
        case "/flush_cache":
            if not backend.forget_prefixes():
                raise SglangError("Failed to flush cache: there are running requests")
        case "/load_lora_adapter":
            adapter = _read(request, LoadLoRAAdapterReqInput)
            backend.load_adapter(adapter.lora_name, adapter.lora_path)
        case "/unload_lora_adapter":
            backend.unload_adapter(_read(request, UnloadLoRAAdapterReqInput).lora_name)
        case _:
            said = None
    return said


def _rename(backend: "FakeBackend", asked: UpdateWeightVersionReqInput) -> dict[str, Any]:
    """Aborts everything unless it is told not to."""
    if asked.abort_all_requests:
        backend.abort_all()
    backend.set_version(asked.new_version)
    return {"success": True, "message": "", "new_version": asked.new_version}


async def _load(backend: "FakeBackend", asked: UpdateWeightFromDiskReqInput) -> dict[str, Any]:
    """Not while a paused engine is asked to empty its cache: SGLang dies of it. Else it waits for what runs."""
    if backend.paused and asked.flush_cache and backend.running:
        raise SglangError("Cache flush failed after updating weights")
    if not backend.paused:
        await backend.wait_until(lambda now: not now.running)
    await backend.load(asked.model_path)
    if asked.weight_version is not None:
        backend.set_version(asked.weight_version)
    return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}


def _read(request: HttpRequest, kind: Any) -> Any:
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise SglangError(str(error)) from error
