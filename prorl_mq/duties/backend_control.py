"""The routes of an inference server beside generation: health, weights, pauses. vLLM's, most of them in dev mode.

Called by maintenance duties only; workers call backends over connections of their own.
"""

import asyncio
import contextlib
import logging
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Meta

from prorl_mq.errors import AddressRefused, ProrlError
from prorl_mq.rules.reach import Reach, reached
from prorl_mq.schema import addresses
from prorl_mq.schema.addresses import place

PAUSES: Final = {"keep": "keep", "drain": "wait", "abort": "abort"}  # update mode → vLLM's mode of a pause
ANSWER_BYTES: Final = 64 << 10
LOGGED: Final = 200  # bytes of an answer that failed
log = logging.getLogger("prorl_mq.duties.backend_control")
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
    """One HTTP client for all backends. Addresses are as they were added, each with the reach of who added it.

    What goes wrong is said in fixed words: an answer of whatever listens there is for the log of the operator alone.
    """

    def __init__(self, *, answer_s: float = 5.0, load_s: float = 600.0) -> None:
        self._answer_s = answer_s
        self._load_s = load_s  # for weights to load, and for turns to drain
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)  # callers limit themselves, by tenant
        self._http = httpx.AsyncClient(
            timeout=load_s,
            limits=limits,
            trust_env=False,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def alive(self, address: str, reach: Reach | None = None) -> bool:
        """`GET /health` answers, and not with a fault. A server without that route is up, too: it said so."""
        try:
            return (await self._send("GET", address, reach, "/health", self._answer_s))[0] < 500
        except ControlFailed:
            return False

    async def version(self, address: str, reach: Reach | None = None) -> str | None:
        """The version of the weights that it serves; None where it does not tell. Raises `ControlFailed`."""
        try:
            body = await self._ask("GET", address, reach, "/weight_info", self._answer_s)
            return msgspec.json.decode(body, type=_WeightInfo).weight_version
        except (NoSuchRoute, msgspec.DecodeError):
            return None

    async def pause(self, address: str, mode: str, reach: Reach | None = None) -> None:
        """Turns under way freeze (`keep`), end (`drain`) or are cut (`abort`); new ones wait. `ControlFailed`."""
        route = f"/pause?mode={PAUSES[mode]}&clear_cache=false"
        await self._ask("POST", address, reach, route, self._load_s if mode == "drain" else self._answer_s)

    async def resume(self, address: str, reach: Reach | None = None) -> None:
        """Raises `ControlFailed`."""
        await self._ask("POST", address, reach, "/resume", self._answer_s)

    async def load(self, address: str, directory: str, reach: Reach | None = None) -> None:
        """New weights from a directory that the backend can read. Raises `ControlFailed`."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": directory}}
        await self._ask("POST", address, reach, "/collective_rpc", self._load_s, call)

    async def name(self, address: str, version: str, reach: Reach | None = None) -> None:
        """Sets the version that its answers name from now on. Raises `ControlFailed`."""
        await self._ask("POST", address, reach, "/update_weight_version", self._answer_s, {"new_version": version})

    async def forget_prefixes(self, address: str, reach: Reach | None = None) -> None:
        """Empties the prefix cache. It refuses while turns hold blocks: salts keep old ones apart. `ControlFailed`."""
        await self._ask("POST", address, reach, "/reset_prefix_cache", self._answer_s)

    async def _ask(
        self, method: str, address: str, reach: Reach | None, route: str, within_s: float, body: Any = None
    ) -> bytes:
        status, content = await self._send(method, address, reach, route, within_s, body)
        route = route.partition("?")[0]
        if status in MISSING:
            raise NoSuchRoute(f"backend {address} has no {route} ({status}): start vLLM with VLLM_SERVER_DEV_MODE=1")
        if not 200 <= status < 300:
            log.log(_level(method), "backend %s: %s answered %s: %r", address, route, status, content[:LOGGED])
            raise ControlFailed(f"backend {address}: {route} answered {status}; the log of the API has its words")
        return content

    async def _send(
        self, method: str, address: str, reach: Reach | None, route: str, within_s: float, body: Any = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer, which has `within_s` in all and `ANSWER_BYTES`. Whatever goes wrong concerns
        this backend alone: an address and an answer are its tenant's, and may be anything. Raises `ControlFailed`.
        """
        try:
            async with asyncio.timeout(within_s):
                urls, about = await _targets(address, reach)
                for url in urls[:-1]:
                    with contextlib.suppress(httpx.ConnectError):  # nothing was sent
                        return await self._answered(method, url + route, body, about)
                return await self._answered(method, urls[-1] + route, body, about)
        except Exception as error:
            log.log(_level(method), "backend %s: %s: %s %s", address, route, type(error).__name__, error)
            raise ControlFailed(f"backend {address}: {route}: {_fault(error)}") from None

    async def _answered(self, method: str, url: str, body: Any, about: dict[str, Any]) -> tuple[int, bytes]:
        async with self._http.stream(method, url, json=body, **about) as answer:
            return answer.status_code, await _whole(answer)


async def _targets(address: str, reach: Reach | None) -> tuple[list[str], dict[str, Any]]:
    """URLs to try, and arguments of the call: the addresses behind a tenant's name, all of them judged just now."""
    if reach is None:
        return [_root(address)], {}
    known = addresses.parse(address)
    found = await reached(known, reach)
    headers = {"Host": urlsplit(address).netloc}
    if known.scheme == "https":  # a connection to this address is one to this name only
        headers["Connection"] = "close"
    urls = [f"{known.scheme}://{place(each, known.port)}" for each in found]
    return urls, {"headers": headers, "extensions": {"sni_hostname": known.host}}


def _level(method: str) -> int:
    """Probes fail every two seconds while a backend is down; what loads weights fails once in a while."""
    return logging.DEBUG if method == "GET" else logging.WARNING


def _fault(error: Exception) -> str:
    """The kind of a failure, in words that say nothing of what listens there."""
    match error:
        case TimeoutError() | httpx.TimeoutException():
            return "timed out"
        case httpx.ConnectError():
            return "refused"
        case AddressRefused():
            return "its address may not be called"
        case _:
            return "not a backend"


async def _whole(answer: httpx.Response) -> bytes:
    content = b""
    async for part in answer.aiter_raw():
        content += part
        if len(content) > ANSWER_BYTES:
            raise ValueError(f"more than {ANSWER_BYTES} bytes")
    return content


def _root(address: str) -> str:
    """An address without the `/v1` that OpenAI clients want."""
    return address.rstrip("/").removesuffix("/v1").rstrip("/")
