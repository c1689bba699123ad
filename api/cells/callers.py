"""Owners of the router's connections: the callers whom a cell has let in."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prorl_mq.process.connections import connection_of


class KnownCallers:
    """A connection on which a cell has let somebody in is no stranger's any more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                said = Headers(scope=scope).get("authorization")
                if said and (connection := connection_of(scope)) is not None:
                    connection.belong(said, _nothing, _nothing)
            await send(message)

        await self._app(scope, receive, told if scope.get("path", "").startswith("/v1/") else send)


def _nothing() -> None:
    """The cells count their tenants' requests."""
