"""A worker's heartbeat on the wire: `renew`, sent from a thread, on a connection that nothing else uses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.codec import encode
from prorl_mq.schema.items import Lease
from prorl_mq.store.core import NO_EPOCH, Core
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.scripts import script
from prorl_mq.store.server.connection import RedisSettings, kept_alive
from prorl_mq.store.server.primary import entry
from prorl_mq.store.server.rendezvous import first, following_quietly
from prorl_mq.store.store import renewal


class Beat:
    """The calls of one worker's heartbeat. An answer may take a third of a lease."""

    def __init__(self, settings: RedisSettings, name: str, *, lease_ms: int) -> None:
        self._keys = Keys(settings.namespace)
        self._name = name
        self._lease_ms = lease_ms
        self._redis = _client(settings, timeout_s=max(0.5, lease_ms / 3000))

    def send(self, about: Mapping[str, str | int], held: Sequence[Lease]) -> list[str]:
        """Sends one heartbeat; for each job the answer of `renew`: `held`, `unleased`, `lost`, or how it must end.

        Raises `RedisUnavailable` if Redis did not answer this one time; the next call connects again.
        """
        try:
            return [each.decode() for each in self._send(about, held)]
        except (RedisError, OSError) as error:
            self._redis.connection_pool.disconnect()
            raise RedisUnavailable(f"the heartbeat of {self._name} was not answered: {error}") from error

    def close(self) -> None:
        """Idempotent."""
        self._redis.close()

    def _send(self, about: Mapping[str, str | int], held: Sequence[Lease]) -> Any:
        beat = renewal(self._keys, self._name, about, held, lease_ms=self._lease_ms)
        renew = script("renew")
        names = (self._keys.epoch, *beat.keys)
        call = (len(names), *names, encode(beat.arguments))
        execute: Callable[..., Any] = self._redis.execute_command
        try:
            return execute("EVALSHA", renew.sha, *call)
        except NoScriptError:
            return execute("EVAL", renew.text, *call)
        except ResponseError as error:
            if not str(error).startswith(NO_EPOCH):
                raise
        opening = encode({"seen": "", "protocol": Core.protocol, "confirmed": ""})
        execute("EVAL", script("open_epoch").text, 2, self._keys.epoch, self._keys.in_flight, opening)
        return execute("EVAL", renew.text, *call)


def threaded(settings: RedisSettings, *, timeout_s: float) -> "redis.Redis":
    """A client for threads, which follows the primary where it moves."""
    place = settings.named
    client = redis.Redis.from_url(
        first(place),
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        health_check_interval=0,
        **kept_alive(place),
        **entry(place),
    )
    if settings.moves:
        pool = client.connection_pool
        kind = pool.connection_class
        pool.connection_class = following_quietly(kind, place, settings.followed, settings.namespace)
    return client


def _client(settings: RedisSettings, *, timeout_s: float) -> "redis.Redis":
    """Every reply is read in its plain RESP2 shape."""
    client = threaded(settings, timeout_s=timeout_s)
    client.response_callbacks.clear()
    return client
