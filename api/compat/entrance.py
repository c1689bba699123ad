"""Callers with a token: in the path, since a client of the first release sends no header, or as everywhere else."""

from typing import Final
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.callers import Callers
from api.compat.routes import detail
from api.problems import Problem

PREFIX: Final = "/token/"
_HOW: Final = "call http://HOST:PORT/token/TOKEN in place of http://HOST:PORT, or send Authorization: Bearer TOKEN"


class Entrance:
    """Names the caller to the routes, which see the path without its token; 401 for everybody else."""

    def __init__(self, app: ASGIApp, *, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        shown = Headers(scope=scope).get("authorization")
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        if raw.startswith(PREFIX.encode()):
            token, _, rest = raw.decode("latin-1").removeprefix(PREFIX).partition("/")
            shown = f"Bearer {unquote(token)}"
            scope = {**scope, "path": unquote(f"/{rest}"), "raw_path": f"/{rest}".encode("latin-1")}
        try:
            caller = self._callers.identify(shown)
        except Problem as refused:
            said = "the token is unknown" if shown else "a token is needed"
            await detail(refused.status, f"{said}: {_HOW}")(scope, receive, send)
            return
        await self._app({**scope, "state": {**scope.get("state", {}), "caller": caller}}, receive, send)
