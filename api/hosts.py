"""Which pages may speak to a service without tokens: none but its own, called by a name that is this machine's.

A browser sends requests for any page that it shows. A page of elsewhere reaches a service on loopback by a name of its
own that now leads to 127.0.0.1 (DNS rebinding), or just sends a POST. Where tokens are needed, it has none to send.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from api import problems
from api.config import ApiSettings
from api.problems import Problem

PAGES: Final = ("/", "/ui", "/docs")  # what a link of another site may lead to
_PAGE_FILES: Final = "/ui/"


def guarded(settings: ApiSettings) -> Sequence[Middleware]:
    """The check, for a service on loopback without --tokens. No browser or machine of elsewhere calls a socket."""
    if settings.tokens and settings.state_dir is None:
        return ()
    return (Middleware(OwnPages, host=settings.host if settings.local and settings.uds is None else ""),)


class OwnPages:
    """Refuses what no page of this service sends: 421 for another host, 403 for another page.

    `host` is the one that was configured; empty: any, because no browser can connect, or other machines may.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self._app = app
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope["path"], Headers(scope=scope))):
            await problems.render(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Problem | None:
        hosts = headers.getlist("host")
        if len(hosts) > 1 or (self._host and hosts and not self._is_own(hosts[0])):
            named = ", ".join(dict.fromkeys(["localhost", "127.0.0.1", self._host]))
            detail = (
                f"without --tokens this service is called by a name of its own machine ({named}), not as "
                f"{', '.join(hosts)[:200]!r}: use one of these, have your proxy send it as Host, or start with --tokens"
            )
            return Problem(421, detail, kind="misdirected")
        origins = headers.getlist("origin")
        own = {f"{scheme}://{each.lower()}" for scheme in ("http", "https") for each in hosts}
        foreign = any(each.lower() not in own for each in origins)
        page = path in PAGES or path.startswith(_PAGE_FILES)
        if foreign or (headers.get("sec-fetch-site") == "cross-site" and not page):
            said = f"a page of {origins[0][:200]!r}" if origins else "a page of another site"
            return Problem(403, f"{said} may not call this service: open its own page at /ui", kind="foreign-page")
        return None

    def _is_own(self, host: str) -> bool:
        name = host.lower()
        port = name.rpartition(":")[2]
        if not name.endswith("]") and port.isascii() and port.isdigit():
            name = name.rpartition(":")[0]
        if name in {"localhost", self._host, f"[{self._host}]"}:
            return True
        try:
            return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
        except ValueError:
            return False
