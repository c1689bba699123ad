"""Connections of redis-py to a place that may change, looked for before each connect: what a rendezvous file names, and
which of several servers is the primary.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prorl_mq.schema.rendezvous import Place, appeared, known, refreshed
from prorl_mq.servers import servers
from prorl_mq.store.server import primary

__all__ = ["Place", "appeared", "first", "following", "following_quietly", "known"]


def first(place: Place) -> str:
    """A URL of one server, by which redis-py chooses its class of connections."""
    several = servers(place.url)
    return place.url if several is None else several.url(several.nodes[0])


def move(connection: Any, place: Place) -> None:
    """Points a connection of redis-py, not yet open, to the place. The kind of address must be what it was."""
    url = urlsplit(place.url)
    if url.scheme == "unix":
        connection.path = url.path
    else:
        connection.host, connection.port = url.hostname or "localhost", url.port or 6379
    if place.ca is not None:  # certificates are renewed while their files keep their names
        tls = getattr(connection, "ssl_context", connection)  # of asyncio, which keeps what it has read
        tls.ca_data, tls.certfile, tls.keyfile, tls.context = place.ca, place.client, place.client, None
    if place.username or place.secret or not url.password:
        connection.username, connection.password = place.username, place.secret


def following(kind: Any, place: Place, file: Path | None, namespace: str) -> Any:
    """The class of asyncio connections to a place that may change. `file`: the rendezvous, if one names it."""

    async def where() -> Place:
        return await primary.of(place if file is None else await refreshed(file), namespace)

    if servers(place.url) is not None:
        at = primary.SoughtPrimary(place.url, namespace)
        return primary.electing(kind, where, move, at, credentials(place, file))

    class FollowingConnection(kind):  # type: ignore[misc]
        async def _connect(self) -> None:
            move(self, await where())
            await super()._connect()

    return FollowingConnection


def credentials(place: Place, file: Path | None) -> Hashable:
    """By which two clients tell whether they are one user: those that a look answers with."""
    return file, place.username, place.secret, place.ca, place.client


def following_quietly(kind: Any, place: Place, file: Path | None, namespace: str) -> Any:
    """The same for threads that must not wait for a file system: they go where asyncio connections went last."""

    def where() -> Place:
        return primary.of_quietly(place if file is None else known(file), namespace)

    if servers(place.url) is not None:
        return primary.electing_quietly(kind, where, move, primary.SoughtPrimary(place.url, namespace))

    class FollowingConnection(kind):  # type: ignore[misc]
        def _connect(self) -> Any:
            move(self, where())
            return super()._connect()

    return FollowingConnection
