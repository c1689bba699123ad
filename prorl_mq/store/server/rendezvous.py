"""Connections of redis-py to the place that a rendezvous file names, read again before each connect."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prorl_mq.schema.rendezvous import Place, appeared, known, refreshed

__all__ = ["Place", "appeared", "following", "following_quietly", "known"]


def move(connection: Any, place: Place) -> None:
    """Points a connection of redis-py, not yet open, to the place. The kind of address must be what it was."""
    url = urlsplit(place.url)
    if url.scheme == "unix":
        connection.path = url.path
    else:
        connection.host, connection.port = url.hostname or "localhost", url.port or 6379
    connection.username, connection.password = place.username, place.secret


def following(kind: Any, path: Path) -> Any:
    """The class of asyncio connections with an address that is read again before each connect."""

    class FollowingConnection(kind):  # type: ignore[misc]
        async def _connect(self) -> None:
            move(self, await refreshed(path))
            await super()._connect()

    return FollowingConnection


def following_quietly(kind: Any, path: Path) -> Any:
    """The same for threads that must not wait for a file system: they go where asyncio connections went last."""

    class FollowingConnection(kind):  # type: ignore[misc]
        def _connect(self) -> Any:
            move(self, known(path))
            return super()._connect()

    return FollowingConnection
