"""Calls of an inference server beside generation: health, weights, pauses.

Called by maintenance duties only; workers call backends over connections of their own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Meta

from prorl_mq.errors import AddressRefused, ProrlError
from prorl_mq.process.backend_keys import BackendKeys
from prorl_mq.rules import engines
from prorl_mq.rules.engines import ADAPTER_FLAG, FLAG, HEALTH, VERSION, ControlCall, Engine
from prorl_mq.rules.reach import Reach, reached
from prorl_mq.rules.routing import metrics
from prorl_mq.schema import addresses
from prorl_mq.schema.addresses import place
from prorl_mq.schema.policy import adapter_versions

ANSWER_BYTES: Final = 64 << 10
METRICS_BYTES: Final = 4 << 20  # of an answer of which a few lines are kept
NAME_CHARS: Final = 512  # of a model's name that are kept
LOGGED: Final = 200  # bytes of an answer that failed
log = logging.getLogger("prorl_mq.duties.backend_control")
MISSING: Final = frozenset({403, 404, 405, 501})


class ControlFailed(ProrlError):
    """A backend did not do what it was told, or did not answer."""

    retryable = True


class NoSuchRoute(ControlFailed):
    """A backend does not have the route; the message says what it is started with to have it."""

    retryable = False


class _WeightInfo(msgspec.Struct):
    weight_version: Annotated[str, Meta(max_length=256)]


class _Model(msgspec.Struct):
    """`root`: where it was loaded from. `parent`: of an adapter, the model."""

    id: str
    root: str | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class BackendControl:
    """One HTTP client for all backends. Addresses are as they were added, each with the reach of who added it.

    What goes wrong is said in fixed words: an answer of whatever listens there is for the log of the operator alone.
    """

    def __init__(self, *, answer_s: float = 5.0, load_s: float = 600.0, keys: BackendKeys | None = None) -> None:
        self._keys = keys or BackendKeys()
        self._answer_s = answer_s
        self._engines: dict[str, Engine] = {}  # by address, as it was found
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
        """Its health route answers, and not with a fault. A server without that route is up, too: it said so."""
        route = HEALTH[self._engines.get(address, Engine.VLLM)]
        try:
            return (await self._send("GET", address, reach, route, self._answer_s))[0] < 500
        except ControlFailed:
            self._engines.pop(address, None)  # it may come back as another one
            return False

    async def version(self, address: str, reach: Reach | None = None) -> str | None:
        """The version of the weights that it serves; None where it does not tell. Raises `ControlFailed`."""
        try:
            route = VERSION[await self._engine(address, reach)]
            body = await self._ask("GET", address, reach, route, self._answer_s)
            return msgspec.json.decode(body, type=_WeightInfo).weight_version
        except (NoSuchRoute, msgspec.DecodeError):
            return None

    async def served(self, address: str, model: str | None, reach: Reach | None = None) -> str | None:
        """The model that it names and where that was loaded from; `model` chooses among several. None where it does not
        tell. Raises `ControlFailed`.
        """
        try:
            body = await self._ask("GET", address, reach, "/v1/models", self._answer_s)
            models = [each for each in msgspec.json.decode(body, type=_Models).data if each.parent is None]
        except (NoSuchRoute, msgspec.DecodeError):
            return None
        found = next((each for each in models if model in {None, each.id}), None)
        if found is None:
            return None
        return (found.id if found.root in {None, found.id} else f"{found.id} ({found.root})")[:NAME_CHARS]

    async def load_lines(self, address: str, reach: Reach | None = None) -> list[bytes]:
        """The lines of its metrics that tell its load; none where it has no such metrics. Raises `ControlFailed`."""
        status, content = await self._send("GET", address, reach, "/metrics", self._answer_s, read=_load_lines)
        return content.splitlines() if status == 200 else []

    async def adapters(self, address: str, adapter: str, reach: Reach | None = None) -> list[int]:
        """The versions of a LoRA adapter that it serves, oldest first. Raises `ControlFailed`."""
        body = await self._ask("GET", address, reach, "/v1/models", self._answer_s)
        try:
            served = [each.id for each in msgspec.json.decode(body, type=_Models).data]
        except msgspec.DecodeError as error:
            raise ControlFailed(f"backend {address}: /v1/models is no list of models: {error}") from None
        return adapter_versions(adapter, served)

    async def load_adapter(self, address: str, name: str, directory: str, reach: Reach | None = None) -> None:
        """Serves an adapter from a directory under a name. Raises `ControlFailed`."""
        call = engines.load_adapter(await self._engine(address, reach), name, directory)
        await self._post(address, reach, call, self._load_s)

    async def unload_adapter(self, address: str, name: str, reach: Reach | None = None) -> None:
        """Raises `ControlFailed`."""
        await self._post(address, reach, engines.unload_adapter(await self._engine(address, reach), name), self._load_s)

    async def pause(self, address: str, mode: str, reach: Reach | None = None) -> None:
        """Turns under way freeze (`keep`), end (`drain`) or are cut (`abort`); new ones wait. `ControlFailed`."""
        call = engines.pause(await self._engine(address, reach), mode)
        if call is not None:
            await self._post(address, reach, call, self._load_s if mode == "drain" else self._answer_s)

    async def resume(self, address: str, reach: Reach | None = None) -> None:
        """Raises `ControlFailed`."""
        await self._post(address, reach, engines.resume(await self._engine(address, reach)), self._answer_s)

    async def load(self, address: str, mode: str, directory: str, version: str, reach: Reach | None = None) -> None:
        """New weights from a directory that the backend can read. Raises `ControlFailed`."""
        call = engines.load(await self._engine(address, reach), mode, directory, version)
        await self._post(address, reach, call, self._load_s)

    async def name(self, address: str, version: str, reach: Reach | None = None) -> None:
        """Sets the version that its answers name from now on. Raises `ControlFailed`."""
        await self._post(address, reach, engines.name(await self._engine(address, reach), version), self._answer_s)

    async def forget_prefixes(self, address: str, reach: Reach | None = None) -> None:
        """Empties the prefix cache. It refuses while turns hold blocks: salts keep old ones apart. `ControlFailed`."""
        await self._post(address, reach, engines.forget_prefixes(await self._engine(address, reach)), self._answer_s)

    async def _engine(self, address: str, reach: Reach | None) -> Engine:
        """The server whose routes a backend has: SGLang tells of its model where vLLM has no route."""
        if address not in self._engines:
            try:
                status, body = await self._send("GET", address, reach, VERSION[Engine.SGLANG], self._answer_s)
            except ControlFailed:
                return Engine.VLLM  # the call that this is for fails as well, and says so of its own route
            self._engines[address] = Engine.SGLANG if status == 200 and b'"model_path"' in body else Engine.VLLM
        return self._engines[address]

    async def _post(self, address: str, reach: Reach | None, call: ControlCall, within_s: float) -> None:
        await self._ask("POST", address, reach, call.route, within_s, call.body, busy_ok=call.busy_ok)

    async def _ask(
        self,
        method: str,
        address: str,
        reach: Reach | None,
        route: str,
        within_s: float,
        body: Any = None,
        *,
        busy_ok: bool = False,
    ) -> bytes:
        status, content = await self._send(method, address, reach, route, within_s, body)
        route = route.partition("?")[0]
        if status in MISSING:
            engine = self._engines.get(address, Engine.VLLM)
            if engine is Engine.SGLANG:
                del self._engines[address]  # asked again: another one may listen there by now
            flags = ADAPTER_FLAG if route.endswith("lora_adapter") else FLAG
            raise NoSuchRoute(f"backend {address} has no {route} ({status}): {flags[engine]}")
        if status == 401:
            raise ControlFailed(f"backend {address}: {route} answered 401: {self._keys.refused(address, reach)}")
        content = self._keys.hide(address, content)
        if not (200 <= status < 300 or (busy_ok and status == 400)):
            log.log(_level(method), "backend %s: %s answered %s: %r", address, route, status, content[:LOGGED])
            raise ControlFailed(f"backend {address}: {route} answered {status}; the log of the API has its words")
        return content

    async def _send(
        self,
        method: str,
        address: str,
        reach: Reach | None,
        route: str,
        within_s: float,
        body: Any = None,
        *,
        read: Callable[[httpx.Response], Awaitable[bytes]] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of the answer, which has `within_s` in all and as many bytes as `read` takes. Whatever goes
        wrong concerns this backend alone: an address and an answer are its tenant's, and may be anything. Raises
        `ControlFailed`.
        """
        try:
            async with asyncio.timeout(within_s):
                urls, about = await _targets(address, reach)
                if reach is None and (key := self._keys.of(address)):
                    about["headers"] = {**about.get("headers", {}), "Authorization": f"Bearer {key}"}
                for url in urls[:-1]:
                    with contextlib.suppress(httpx.ConnectError):  # nothing was sent
                        return await self._answered(method, url + route, body, about, read or _whole)
                return await self._answered(method, urls[-1] + route, body, about, read or _whole)
        except Exception as error:
            words = self._keys.quoted(address, str(error))
            log.log(_level(method), "backend %s: %s: %s %s", address, route, type(error).__name__, words)
            raise ControlFailed(f"backend {address}: {route}: {_fault(error)}") from None

    async def _answered(
        self,
        method: str,
        url: str,
        body: Any,
        about: dict[str, Any],
        read: Callable[[httpx.Response], Awaitable[bytes]],
    ) -> tuple[int, bytes]:
        async with self._http.stream(method, url, json=body, **about) as answer:
            return answer.status_code, await read(answer)


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


async def _load_lines(answer: httpx.Response) -> bytes:
    """The lines of metrics that tell the load. A loaded server has hundreds of kilobytes of others."""
    kept, rest, size = list[bytes](), b"", 0
    async for part in answer.aiter_raw():
        *lines, rest = (rest + part).split(b"\n")
        kept += [line for line in lines if metrics.keeps(line)]
        size += len(part)
        if size > METRICS_BYTES or len(rest) + sum(map(len, kept)) > ANSWER_BYTES:
            raise ValueError(f"more than {METRICS_BYTES} bytes of metrics, or {ANSWER_BYTES} of those of its load")
    return b"\n".join(kept)


def _root(address: str) -> str:
    """An address without the `/v1` that OpenAI clients want."""
    return address.rstrip("/").removesuffix("/v1").rstrip("/")
