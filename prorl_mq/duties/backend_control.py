"""The routes of an inference server beside generation: health, weights, pauses. vLLM's, most of them in dev mode.

Called by maintenance duties only; workers call backends over connections of their own.
"""

import asyncio
from typing import Annotated, Any, Final

import httpx
import msgspec
from msgspec import Meta

from prorl_mq.errors import ProrlError

PAUSES: Final = {"keep": "keep", "drain": "wait", "abort": "abort"}  # update mode → vLLM's mode of a pause
ANSWER_BYTES: Final = 1 << 20
MISSING: Final = frozenset({403, 404, 405, 501})


class ControlFailed(ProrlError):
    """A backend did not do what it was told, or did not answer."""

    retryable = True


class NoSuchRoute(ControlFailed):
    """A backend does not have the route; vLLM has it with VLLM_SERVER_DEV_MODE=1."""

    retryable = False


class _WeightInfo(msgspec.Struct):
    weight_version: Annotated[str, Meta(max_length=256)]


class BackendControl:
    """One HTTP client for all backends. Addresses are as they were added."""

    def __init__(self, *, answer_s: float = 5.0, load_s: float = 600.0) -> None:
        self._answer_s = answer_s
        self._load_s = load_s  # for weights to load, and for turns to drain
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)  # callers limit themselves, by tenant
        self._http = httpx.AsyncClient(
            timeout=load_s, limits=limits, trust_env=False, headers={"Accept-Encoding": "identity"}
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def alive(self, address: str) -> bool:
        """`GET /health` answers, and not with a fault. A server without that route is up, too: it said so."""
        try:
            return (await self._send("GET", address, "/health", self._answer_s))[0] < 500
        except ControlFailed:
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
        status, content = await self._send(method, address, route, within_s, body)
        if status in MISSING:
            raise NoSuchRoute(f"backend {address} has no {route} ({status}): start vLLM with VLLM_SERVER_DEV_MODE=1")
        if status >= 400:
            said = content[:200].decode(errors="replace")
            raise ControlFailed(f"backend {address}: {route} answered {status}: {said}")
        return content

    async def _send(
        self, method: str, address: str, route: str, within_s: float, body: Any = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer, which has `within_s` in all and `ANSWER_BYTES`. Whatever goes wrong concerns
        this backend alone: an address and an answer are its tenant's, and may be anything. Raises `ControlFailed`.
        """
        try:
            async with (
                asyncio.timeout(within_s),
                self._http.stream(method, _root(address) + route, json=body) as answer,
            ):
                return answer.status_code, await _whole(answer)
        except ControlFailed:
            raise
        except TimeoutError:
            raise ControlFailed(f"backend {address}: {route}: no whole answer within {within_s:g} s") from None
        except Exception as error:
            raise ControlFailed(f"backend {address}: {route}: {type(error).__name__} {error}".rstrip()) from error


async def _whole(answer: httpx.Response) -> bytes:
    content = b""
    async for part in answer.aiter_raw():
        content += part
        if len(content) > ANSWER_BYTES:
            raise ControlFailed(f"{answer.url} answered more than {ANSWER_BYTES} bytes")
    return content


def _root(address: str) -> str:
    """An address without the `/v1` that OpenAI clients want."""
    return address.rstrip("/").removesuffix("/v1").rstrip("/")
