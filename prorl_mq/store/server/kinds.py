"""Kinds of connections, each made of another: one that ends without a failure, one packed in C, one that is kept."""

import logging
from typing import Any

from redis.exceptions import ResponseError, TimeoutError

log = logging.getLogger("prorl_mq.redis")


def kept(kind: Any) -> Any:
    """Connections of the service itself: where clients fill Redis together, others are disconnected."""

    class KeptConnection(kind):  # type: ignore[misc]
        async def on_connect_check_health(self, check_health: bool = True) -> None:
            await super().on_connect_check_health(check_health=check_health)
            await self.send_command("CLIENT", "NO-EVICT", "ON")
            try:
                await self.read_response()
            except ResponseError as error:  # of a user of an earlier release: it may be disconnected, and comes back
                log.debug("this connection is not kept: %s", error)

    return KeptConnection


def ending_quietly(kind: Any) -> Any:
    """With a disconnect that does not fail."""

    class QuietConnection(kind):  # type: ignore[misc]
        async def disconnect(self, *args: Any, **options: Any) -> None:
            """A busy peer may take longer to end TLS than the client waits for it: that is not a failure."""
            writer = self._writer
            try:
                await super().disconnect(*args, **options)
            except TimeoutError:
                if writer is not None:
                    writer.transport.abort()

    return QuietConnection


def packing_fast(kind: Any) -> Any:
    """With commands packed in C: a script call for 64 jobs has hundreds of parts."""
    try:
        from hiredis import pack_command
    except ImportError:
        return kind

    class FastConnection(kind):  # type: ignore[misc]
        def pack_command(self, *args: Any) -> list[bytes]:
            return [pack_command(args)]

    return FastConnection
