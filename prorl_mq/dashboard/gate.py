"""Admission to the page: whoever shows the token, from a page of ours where something is to change."""

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "prorl_dashboard"
_READING: Final = frozenset({"GET", "HEAD"})


class Gate:
    """Takes the token as `?token=`, which becomes a cookie, or as a bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._entering(scope) or self._refusal(scope, headers)
        await (refusal or self._app)(scope, receive, _safely(send))

    def _entering(self, scope: Scope) -> Response | None:
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        shown = asked.pop("token", None)
        if shown is None or scope["method"] not in _READING or not self._is_token(shown[0]):
            return None
        left = urlencode(asked, doseq=True)
        answer = RedirectResponse(f"{scope['path']}{'?' + left if left else ''}", status_code=303)
        answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        return answer

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        shown = bearer if scheme.lower() == "bearer" else _cookie(headers)
        if not self._is_token(shown.strip()):
            said = "the dashboard's token is needed: open the address that it printed when it started"
            return PlainTextResponse(said, 401, headers={"WWW-Authenticate": "Bearer"})
        origin = headers.get("origin")
        if scope["method"] not in _READING and origin is not None and origin.partition("://")[2] != headers.get("host"):
            return PlainTextResponse(f"a page of {origin} may press no button here", 403)
        return None

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _safely(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"x-content-type-options", b"nosniff"),
                (b"referrer-policy", b"no-referrer"),
                (b"x-frame-options", b"DENY"),
            ]
        await send(message)

    return sending
