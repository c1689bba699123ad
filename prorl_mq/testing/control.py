"""A fake backend's routes beside generation: health, metrics, aborts, pauses, weights, and `/fake`, its own control."""

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, UnsetType

from prorl_mq.process.http_server import HttpRequest, HttpResponse
from prorl_mq.testing import sglang
from prorl_mq.testing.wire import SERVER_PREFIX, VLLM_GENERATE, FakeFault, error_answer

if TYPE_CHECKING:
    from prorl_mq.testing.fake_backend import FakeBackend

ABORT_ROUTES = ("/inference/v1/abort_requests", "/abort_requests")  # the first since vLLM 0.32


class FakeBehaviour(msgspec.Struct, forbid_unknown_fields=True):
    """Behaviour that `POST /fake` may change while the backend runs; fields that are left out stay as they are."""

    latency_ms: float | UnsetType = UNSET
    token_ms: float | UnsetType = UNSET
    load_ms: float | UnsetType = UNSET
    healthy: bool | UnsetType = UNSET
    tells_version: bool | UnsetType = UNSET
    model_root: str | UnsetType = UNSET
    fault: FakeFault | UnsetType | None = UNSET
    refused: dict[str, int] | UnsetType = UNSET
    fail_next: list[FakeFault] = []


class _Call(msgspec.Struct):
    method: str
    kwargs: dict[str, Any] = {}


async def control(backend: "FakeBackend", request: HttpRequest) -> HttpResponse:
    """Answers anything but a generating request."""
    refused = backend.refused.get(request.path)
    if refused is not None:
        return error_answer(refused, "this refusal was asked for")
    if request.path == "/fake":
        return _fake(backend, request)
    return _look(backend, request.path) if request.method == "GET" else await _act(backend, request)


def _fake(backend: "FakeBackend", request: HttpRequest) -> HttpResponse:
    if request.method != "GET":
        try:
            program = msgspec.json.decode(request.body, type=FakeBehaviour)
        except msgspec.MsgspecError as error:
            return error_answer(400, str(error))
        for name in program.__struct_fields__:
            value = getattr(program, name)
            if name != "fail_next" and value is not UNSET:
                setattr(backend, name, value)
        backend.fail_next(*program.fail_next)
    return answer(
        {
            "running": backend.running, "served": backend.served, "prompt_tokens": backend.prompt_tokens,
            "hit_tokens": backend.hit_tokens, "version": backend.version, "loaded": backend.loaded,
            "aborts": backend.aborts, "paused": backend.paused, "calls": backend.calls,
        }
    )  # fmt: skip


def _look(backend: "FakeBackend", path: str) -> HttpResponse:
    if backend.is_sglang and (said := sglang.look(backend, path)) is not None:
        return answer(said)
    match path:
        case "/health" | "/ready":
            return HttpResponse(200 if backend.healthy else 503)
        case "/v1/models":
            about = {"owned_by": "vllm", "max_model_len": backend.context_tokens}
            model = {"id": backend.model, "root": backend.model_root or backend.model, "parent": None, **about}
            adapters = [
                {"id": name, "root": at, "parent": backend.model, **about} for name, at in backend.adapters.items()
            ]
            return answer({"object": "list", "data": [model, *adapters]})
        case "/metrics":
            return HttpResponse(body=_metrics(backend).encode(), content_type="text/plain")
        case _:
            said = _facts(backend).get(path)
            return error_answer(404, "Not Found") if said is None else answer(said)


def _facts(backend: "FakeBackend") -> dict[str, Any]:
    """Answers by path: what vLLM tells of itself."""
    return {
        "/is_paused": {"is_paused": backend.paused},
        "/weight_info": {"weight_version": backend.version} if backend.tells_version else None,
        "/version": {"version": backend.engine_version} if backend.engine_version else None,
    }


async def _act(backend: "FakeBackend", request: HttpRequest) -> HttpResponse:
    backend.calls.append(request.path)
    if backend.is_sglang:
        return await _act_sglang(backend, request)
    if request.path in backend.abort_routes:
        return _abort(backend, request)
    match request.path:
        case "/pause":
            [mode] = parse_qs(request.query).get("mode", ["abort"])
            await backend.pause(mode)
            said: dict[str, Any] = {"status": "paused"}
        case "/resume":
            backend.resume()
            said = {"status": "resumed"}
        case "/collective_rpc":
            call = msgspec.json.decode(request.body, type=_Call)
            await backend.load(str(call.kwargs.get("weights_path", "")))
            said = {"results": [None]}
        case "/update_weight_version":
            backend.set_version(msgspec.json.decode(request.body, type=dict[str, str])["new_version"])
            said = {"success": True, "new_version": backend.version}
        case "/reset_prefix_cache":
            said = {"success": backend.forget_prefixes()}
        case "/v1/load_lora_adapter":
            adapter = msgspec.json.decode(request.body, type=dict[str, Any])
            backend.load_adapter(adapter["lora_name"], adapter["lora_path"])
            said = {}
        case "/v1/unload_lora_adapter":
            backend.unload_adapter(msgspec.json.decode(request.body, type=dict[str, str])["lora_name"])
            said = {}
        case _:
            closed = request.path == VLLM_GENERATE
            return error_answer(403 if closed else 404, "the route is disabled" if closed else "Not Found")
    return answer(said)


async def _act_sglang(backend: "FakeBackend", request: HttpRequest) -> HttpResponse:
    try:
        said = await sglang.act(backend, request)
    except sglang.SglangError as error:
        return error_answer(400, str(error))
    return error_answer(404, "Not Found") if said is None else answer(said)


def _abort(backend: "FakeBackend", request: HttpRequest) -> HttpResponse:
    """The older route aborts everything when it is given no ids."""
    ids = msgspec.json.decode(request.body, type=dict[str, list[str]]).get("request_ids")
    if not ids:
        if request.path == ABORT_ROUTES[0]:
            return error_answer(400, "Missing 'request_ids' in request body")
        return answer({"status": "aborted", "aborted": backend.abort_all()})
    backend.aborts.extend(ids)
    backend.abort([each.removeprefix(SERVER_PREFIX) for each in ids if each.startswith(SERVER_PREFIX)])
    return HttpResponse() if request.path == ABORT_ROUTES[0] else answer({"status": "aborted", "aborted": len(ids)})


def _metrics(backend: "FakeBackend") -> str:
    held = sum(len(each.log.call.prompt_ids) for each in backend._running.values() if each.begun)  # noqa: SLF001
    cache, labels = backend.cache, f'engine="0",model_name="{backend.model}"'
    blocks = f'block_size="{cache.block_tokens}",engine="0",num_gpu_blocks="{cache.capacity_blocks}"'
    return "".join(
        f"vllm:{name}{{{about}}} {float(value)}\n"
        for name, about, value in (
            ("num_requests_running", labels, backend.running - backend.waiting),
            ("num_requests_waiting", labels, backend.waiting),
            ("kv_cache_usage_perc", labels, held / (cache.block_tokens * cache.capacity_blocks)),
            ("num_preemptions_total", labels, backend.preempted),
            ("cache_config_info", blocks, 1),
            ("prefix_cache_queries_total", labels, backend.prompt_tokens),
            ("prefix_cache_hits_total", labels, backend.hit_tokens),
        )
    )


def answer(value: Any) -> HttpResponse:
    return HttpResponse(body=msgspec.json.encode(value))
