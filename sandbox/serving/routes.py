"""The routes of a sandbox server. docs/reference/remote-sandboxes.md is their page."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from sandbox.errors import SandboxError
from sandbox.lifetime.wire import UnixDial
from sandbox.remote import messages
from sandbox.remote.http import GONE
from sandbox.remote.messages import HeartbeatAnswer, HeartbeatBody, Hello, NewSandbox, Refusal, RemoteList
from sandbox.remote.tunnel import carry
from sandbox.serving.served import NoRoom, OtherSandbox, ServedKey, ServedSandboxes
from sandbox.serving.tenants import tenant_of

FULL_S: Final = 2  # after which a client that found no room may ask again
LONGEST_TTL_S: Final = 24 * 3600.0
LONGEST_TEXT: Final = 2_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")
log = logging.getLogger(__name__)


class RequestRefused(Exception):
    """A request that is answered with a status and a reason."""

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.headers = status, error, headers


class SandboxRoutes:
    """The routes over one served. `images`: absolute path of the directory whose images clients may name."""

    def __init__(self, served: ServedSandboxes, hello: Hello, tenants: Mapping[str, str], images: Path) -> None:
        self._served = served
        self._hello = hello
        self._tenants = tenants
        self._images = images

    def app(self) -> web.Application:
        app = web.Application(client_max_size=messages.BODY_BYTES, middlewares=[self._answer])
        one = messages.ROOT + "/sandboxes/{name}"
        app.router.add_get(messages.ROOT, self._greet)
        app.router.add_get(f"{messages.ROOT}/sandboxes", self._list)
        app.router.add_post(f"{messages.ROOT}/heartbeat", self._beat)
        app.router.add_put(one, self._create)
        app.router.add_get(one, self._look)
        app.router.add_delete(one, self._delete)
        app.router.add_get(f"{one}/link", self._link)
        return app

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets in who has a token, and turns refusals into answers."""
        try:
            self._tenant(request)
            return await handler(request)
        except RequestRefused as why:
            return _json(Refusal(error=why.error, message=str(why)), why.status, why.headers)
        except web.HTTPException as error:
            return _json(
                Refusal(error="request", message=f"{error.reason}: {request.method} {request.path}"), error.status
            )
        except (SandboxError, OSError) as error:
            log.warning("%s %s: %s", request.method, request.path, error)
            return _json(Refusal(error="failed", message=str(error)[:LONGEST_TEXT]), 500)
        except Exception:
            log.exception("%s %s", request.method, request.path)
            return _json(Refusal(error="failed", message="a fault of the server; its log has it"), 500)

    def _tenant(self, request: web.Request) -> str:
        tenant = tenant_of(request.headers.get("Authorization", ""), self._tenants)
        if tenant is None:
            raise RequestRefused(401, "token", "give a token that this server knows: Authorization: Bearer TOKEN")
        return tenant

    async def _greet(self, _: web.Request) -> web.Response:
        return _json(self._hello)

    async def _create(self, request: web.Request) -> web.Response:
        key, wanted = self._key(request), await _body(request, NewSandbox)
        wanted = self._allowed(wanted)
        try:
            _, new = await self._served.create(key, wanted)
        except NoRoom:
            raise RequestRefused(
                429, "full", "as many sandboxes as it may hold", {"Retry-After": str(FULL_S)}
            ) from None
        except OtherSandbox:
            raise RequestRefused(409, "taken", f"{key.name} is the name of another sandbox; take a new name") from None
        except (SandboxError, OSError, ValueError) as error:
            raise RequestRefused(500, "start_failed", str(error)[:LONGEST_TEXT]) from error
        return _json(self._served.state(key), 201 if new else 200)

    def _allowed(self, wanted: NewSandbox) -> NewSandbox:
        """With the image's place on this machine. Clients name nothing of this machine but its images."""
        if wanted.network:
            raise RequestRefused(422, "unsupported", "sandboxes here have no network")
        if not 1 <= wanted.ttl_s <= LONGEST_TTL_S:
            raise RequestRefused(422, "unsupported", f"ttl_s must be 1 to {LONGEST_TTL_S:.0f}")
        if problem := unfit(wanted):
            raise RequestRefused(422, "unsupported", problem)
        if wanted.image is None:
            return wanted
        place = self._images
        try:
            place = (self._images / wanted.image).resolve()
            there = place.is_relative_to(self._images) and place != self._images and place.exists()
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, or a link to itself
            there = False
        if not there:
            raise RequestRefused(422, "unsupported", f"there is no image {wanted.image!r} here")
        return msgspec.structs.replace(wanted, image=str(place))

    async def _look(self, request: web.Request) -> web.Response:
        key = self._there(request)
        return _json(self._served.state(key))

    async def _list(self, request: web.Request) -> web.Response:
        found = self._served.listed(self._tenant(request), request.query.get("service", ""))
        found = [each for each in found if each.name > request.query.get("after", "")]
        return _json(RemoteList(sandboxes=found[: messages.PAGE], more=len(found) > messages.PAGE))

    async def _beat(self, request: web.Request) -> web.Response:
        names = (await _body(request, HeartbeatBody)).names
        if len(names) > messages.PAGE:
            raise RequestRefused(422, "unsupported", f"{messages.PAGE} names at most")
        return _json(
            HeartbeatAnswer(
                gone=[name for name in names if not self._served.wanted(ServedKey(self._tenant(request), name))]
            )
        )

    async def _delete(self, request: web.Request) -> web.Response:
        await self._served.remove(self._key(request))
        return web.Response(status=204)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        """Carries the bytes of one connection to the sandbox's execution server."""
        key = self._there(request)
        placed = self._served.find(key)
        assert placed is not None
        link = web.WebSocketResponse(
            heartbeat=messages.BEAT_S, max_msg_size=messages.MESSAGE_BYTES, compress=False, timeout=2.0
        )
        if not link.can_prepare(request).ok:
            raise RequestRefused(426, "request", "a link is a WebSocket", {"Upgrade": "websocket"})
        with self._served.linked(key), await self._stream(placed.handle) as stream:
            await link.prepare(request)
            if fault := await carry(link, stream):
                log.warning("link of sandbox %s of %s: %s", key.name, key.tenant, fault)
        return link

    async def _stream(self, handle: Any) -> socket.socket:
        dial = UnixDial()
        try:
            return await dial.connect(handle)
        except (ConnectionError, FileNotFoundError) as error:
            raise RequestRefused(404, GONE, str(await dial.lost(handle, error))) from error

    def _there(self, request: web.Request) -> ServedKey:
        key = self._key(request)
        if self._served.find(key) is None:
            raise RequestRefused(404, GONE, f"there is no sandbox {key.name}")
        return key

    def _key(self, request: web.Request) -> ServedKey:
        name = request.match_info["name"]
        if not messages.NAME.fullmatch(name):
            raise RequestRefused(422, "unsupported", "a name has 8 to 64 letters a to z and digits")
        return ServedKey(self._tenant(request), name)


def unfit(wanted: NewSandbox) -> str:
    """The part of a request that no sandbox can have; empty: none. Programs of this machine are told the paths."""
    named = (*wanted.writable, *wanted.empty)
    if named and wanted.image is None:
        return "writable and empty name directories of an image; the base image has its own"
    for each in named:
        if not each.startswith("/") or not each.isprintable() or ".." in PurePosixPath(each).parts:
            return f"writable and empty name directories of an image by absolute paths, and {each!r} is none"
    for name, value in wanted.environment.items():
        if not name or "=" in name or "\0" in name + value:
            return f"the environment has a variable that no program can have: {name!r}"
    if any(limit < 1 for limit in msgspec.structs.astuple(wanted.limits)):
        return "limits are 1 or more"
    return ""


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        async with asyncio.timeout(messages.REQUEST_S):
            data = await request.read()
        return msgspec.json.decode(data, type=kind)
    except TimeoutError:
        raise RequestRefused(408, "request", f"the body did not come within {messages.REQUEST_S:.0f} s") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RequestRefused(422, "unsupported", str(error)) from error


def _json(body: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, headers=dict(headers or {}), content_type="application/json"
    )
