"""The page's server: the gate, then our buttons, then rq-dashboard for whatever only reads."""

import socket
from typing import Any, Final, cast

import uvicorn
from a2wsgi import WSGIMiddleware
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_mq.dashboard.buttons import Buttons
from prorl_mq.dashboard.gate import Gate
from prorl_mq.dashboard.hosting import NOTICES, rq_dashboard_app
from prorl_mq.dashboard.settings import DashboardSettings
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.connections import TimedProtocol
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import Store

DRAIN_S: Final = 5
_NOTICES: Final = """
$(document).ajaxComplete(function (event, answer, asked) {
  var said = asked.type === 'POST' && answer.responseJSON && answer.responseJSON.message;
  if (!said) { return; }
  $('#prorl-notice').remove();
  var notice = $('<div id="prorl-notice" role="status" class="alert sticky-top"></div>').text(said);
  notice.addClass(answer.status === 200 ? 'alert-success' : 'alert-warning').prependTo('div.container:first');
});
"""


def create_app(settings: DashboardSettings, store: Store, mirror: "Redis") -> Starlette:
    """The whole page as one ASGI app."""
    flask: Any = rq_dashboard_app(settings.mirror)
    routes = [
        *Buttons(store, mirror).routes(),
        Route(NOTICES, lambda _: Response(_NOTICES, media_type="text/javascript")),
        Mount("/", app=ReadOnly(cast("ASGIApp", WSGIMiddleware(flask)))),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Gate, token=settings.token)])


class ReadOnly:
    """Lets through what changes nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["type"] == "http" and (scope["method"] not in {"GET", "HEAD"} or path.startswith("/requeue/")):
            await PlainTextResponse(f"{path} changes nothing by {scope['method']}", 405)(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def serve(settings: DashboardSettings, store: Store) -> None:
    """Listens on loopback until SIGTERM, and says where. Raises `ConfigurationError`."""
    mirror = connect(settings.mirror)
    try:
        with _listening(settings.port) as sock:
            app = create_app(settings, store, mirror)
            config = uvicorn.Config(
                app,
                http=TimedProtocol,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_S,
            )
            print(f"listening on http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
            await uvicorn.Server(config).serve([sock])
    finally:
        await mirror.aclose()


def _listening(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
    except OSError as error:
        sock.close()
        raise ConfigurationError(f"127.0.0.1:{port} cannot be listened on: {error.strerror}") from None
    return sock
