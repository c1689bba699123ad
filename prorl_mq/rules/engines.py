"""Control routes of inference servers, one column for vLLM and one for SGLang: pauses, weights, adapters, versions.

vLLM has most of them in dev mode alone. SGLang waits for turns under way by itself where it loads without a pause; with
turns frozen in place it must not be told to empty its cache, which it would not survive.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple


class Engine(StrEnum):
    """Servers whose control routes are known."""

    VLLM = "vllm"
    SGLANG = "sglang"


class ControlCall(NamedTuple):
    """A POST. `busy_ok`: 400 says that turns are in the way, and nothing is lost by that."""

    route: str
    body: Any = None
    busy_ok: bool = False


HEALTH: Final = {Engine.VLLM: "/health", Engine.SGLANG: "/ready"}  # SGLang's /health samples a token where it is idle
VERSION: Final = {Engine.VLLM: "/weight_info", Engine.SGLANG: "/model_info"}
FLAG: Final = {
    Engine.VLLM: "start vLLM with VLLM_SERVER_DEV_MODE=1",
    Engine.SGLANG: "SGLang has it since 0.5.10",
}
ADAPTER_FLAG: Final = {
    Engine.VLLM: "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    Engine.SGLANG: "start SGLang with --enable-lora",
}
_VLLM_PAUSES: Final = {"keep": "keep", "drain": "wait", "abort": "abort"}  # update mode → vLLM's mode of a pause
_SGLANG_PAUSES: Final = {"keep": "in_place", "abort": "abort"}


def pause(engine: Engine, mode: str) -> ControlCall | None:
    """Freezes turns (`keep`), waits for them (`drain`) or cuts them (`abort`). None: loading does so by itself."""
    if engine is Engine.VLLM:
        return ControlCall(f"/pause?mode={_VLLM_PAUSES[mode]}&clear_cache=false")
    return ControlCall("/pause_generation", {"mode": _SGLANG_PAUSES[mode]}) if mode in _SGLANG_PAUSES else None


def resume(engine: Engine) -> ControlCall:
    if engine is Engine.VLLM:
        return ControlCall("/resume")
    return ControlCall("/continue_generation", {})


def load(engine: Engine, mode: str, directory: str, version: str) -> ControlCall:
    """Weights from a directory. SGLang takes the version along, for the spans of turns under way."""
    if engine is Engine.VLLM:
        return ControlCall("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": directory}})
    about = {"model_path": directory, "weight_version": version, "flush_cache": mode != "keep"}
    return ControlCall("/update_weights_from_disk", {**about, "abort_all_requests": False})


def name(engine: Engine, version: str) -> ControlCall:
    """Sets the version that answers name. SGLang would abort every turn for it by default."""
    if engine is Engine.VLLM:
        return ControlCall("/update_weight_version", {"new_version": version})
    return ControlCall("/update_weight_version", {"new_version": version, "abort_all_requests": False})


def forget_prefixes(engine: Engine) -> ControlCall:
    """Empties the prefix cache. Both refuse while turns hold some of it; salts keep old prefixes apart."""
    if engine is Engine.VLLM:
        return ControlCall("/reset_prefix_cache")
    return ControlCall("/flush_cache", busy_ok=True)


def load_adapter(engine: Engine, adapter: str, directory: str) -> ControlCall:
    route = "/v1/load_lora_adapter" if engine is Engine.VLLM else "/load_lora_adapter"
    return ControlCall(route, {"lora_name": adapter, "lora_path": directory})


def unload_adapter(engine: Engine, adapter: str) -> ControlCall:
    route = "/v1/unload_lora_adapter" if engine is Engine.VLLM else "/unload_lora_adapter"
    return ControlCall(route, {"lora_name": adapter})
