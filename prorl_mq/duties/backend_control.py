"""The routes of an inference server beside generation: health, weights, pauses. vLLM's, most of them in dev mode.

Called by maintenance duties only; workers call backends over connections of their own.
"""

from typing import Any, Final

import httpx
import msgspec

from prorl_mq.errors import ProrlError

PAUSES: Final = {"keep": "keep", "drain": "wait", "abort": "abort"}  # update mode → vLLM's mode of a pause
MISSING: Final = frozenset({403, 404, 405, 501})


class ControlFailed(ProrlError):
    """A backend did not do what it was told, or did not answer."""

    retryable = True


class NoSuchRoute(ControlFailed):
    """A backend does not have the route; vLLM has it with VLLM_SERVER_DEV_MODE=1."""

    retryable = False


class _WeightInfo(msgspec.Struct):
    weight_version: str


class BackendControl:
    """One HTTP client for all backends. Addresses are as they were added."""

    def __init__(self, *, answer_s: float = 5.0, load_s: float = 600.0) -> None:
        self._answer_s = answer_s
        self._load_s = load_s  # for weights to load, and for turns to drain
        self._http = httpx.AsyncClient(timeout=answer_s, trust_env=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def alive(self, address: str) -> bool:
        """`GET /health` answers, and not with a fault. A server without that route is up, too: it said so."""
        try:
            return (await self._http.get(f"{_root(address)}/health")).status_code < 500
        except (httpx.HTTPError, httpx.InvalidURL):
            return False

    async def version(self, address: str) -> str | None:
        """The version of the weights that it serves; None where it does not tell. Raises `ControlFailed`."""
        try:
            body = await self._ask("GET", address, "/weight_info", self._answer_s)
            return msgspec.json.decode(body, type=_WeightInfo).weight_version
        except (NoSuchRoute, msgspec.DecodeError):
            return None

    async def pause(self, address: str, mode: str) -> None:
        """Turns under way freeze (`keep`), end (`drain`) or are cut (`abort`); new ones wait. `ControlFailed`."""
        route = f"/pause?mode={PAUSES[mode]}&clear_cache=false"
        await self._ask("POST", address, route, self._load_s if mode == "drain" else self._answer_s)

    async def resume(self, address: str) -> None:
        """Raises `ControlFailed`."""
        await self._ask("POST", address, "/resume", self._answer_s)

    async def load(self, address: str, directory: str) -> None:
        """New weights from a directory that the backend can read. Raises `ControlFailed`."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": directory}}
        await self._ask("POST", address, "/collective_rpc", self._load_s, call)

    async def name(self, address: str, version: str) -> None:
        """Sets the version that its answers name from now on. Raises `ControlFailed`."""
        await self._ask("POST", address, "/update_weight_version", self._answer_s, {"new_version": version})

    async def forget_prefixes(self, address: str) -> None:
        """Empties the prefix cache. It refuses while turns hold blocks: salts keep old ones apart. `ControlFailed`."""
        await self._ask("POST", address, "/reset_prefix_cache", self._answer_s)

    async def _ask(self, method: str, address: str, route: str, within_s: float, body: Any = None) -> bytes:
        try:
            answer = await self._http.request(method, _root(address) + route, json=body, timeout=within_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ControlFailed(f"backend {address}: {route}: {type(error).__name__} {error}".rstrip()) from error
        if answer.status_code in MISSING:
            raise NoSuchRoute(
                f"backend {address} has no {route} ({answer.status_code}): start vLLM with VLLM_SERVER_DEV_MODE=1"
            )
        if answer.status_code >= 400:
            raise ControlFailed(f"backend {address}: {route} answered {answer.status_code}: {answer.text[:200]}")
        return answer.content


def _root(address: str) -> str:
    """An address without the `/v1` that OpenAI clients want."""
    return address.rstrip("/").removesuffix("/v1").rstrip("/")
