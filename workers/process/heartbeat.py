"""The heartbeat: a thread and a connection of its own renew leases, so that no handler can hold them up."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import JobRef, Token
from prorl_mq.store.connection import RedisSettings, entry
from prorl_mq.store.core import NO_EPOCH
from prorl_mq.store.keys import Keys
from prorl_mq.store.rendezvous import following_quietly
from prorl_mq.store.scripts import script
from prorl_mq.store.store import renewal

log = logging.getLogger("workers.process.heartbeat")

Answers = Callable[[list[tuple[JobRef, Token, str]]], None]


class Heartbeat:
    """Beats every third of a lease, more often while Redis does not answer."""

    def __init__(
        self,
        settings: RedisSettings,
        name: str,
        *,
        lease_ms: int,
        about: Callable[[], dict[str, str | int]],
        leases: Callable[[], list[tuple[JobRef, Token]]],
        answered: Answers,
    ) -> None:
        self._keys = Keys(settings.namespace)
        self._name = name
        self._lease_ms = lease_ms
        self._about, self._leases, self._answered = about, leases, answered
        self._redis = _client(settings, timeout_s=max(0.5, lease_ms / 3000))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        """The first beat has happened when this returns, so that the worker is known before it reads."""
        self._try_beat()
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._redis.close()

    def _beat_on(self) -> None:
        ok = True
        while not self._stop.wait(self._lease_ms / 3000 if ok else min(0.25, self._lease_ms / 10_000)):
            ok = self._try_beat()

    def _try_beat(self) -> bool:
        held = self._leases()
        try:
            answers = self._send(held)
        except (RedisError, OSError) as error:
            log.warning("heartbeat of %s was not answered: %s", self._name, error)
            return False
        changed = [(ref, token, said) for (ref, token), said in zip(held, answers, strict=True) if said != "held"]
        if changed:
            self._answered(changed)
        return True

    def _send(self, held: list[tuple[JobRef, Token]]) -> list[str]:
        beat = renewal(self._keys, self._name, self._about(), held, lease_ms=self._lease_ms)
        renew = script("renew")
        call = (len(beat.keys), *beat.keys, encode(beat.arguments))
        execute: Callable[..., Any] = self._redis.execute_command
        try:
            reply = execute("EVALSHA", renew.sha, *call)
        except NoScriptError:
            reply = execute("EVAL", renew.text, *call)
        except ResponseError as error:
            if not str(error).startswith(NO_EPOCH):
                raise
            execute("EVAL", script("open_epoch").text, 1, self._keys.epoch)
            reply = execute("EVAL", renew.text, *call)
        return [each.decode() for each in reply]


def _client(settings: RedisSettings, *, timeout_s: float) -> "redis.Redis":
    place = settings.place
    client = redis.Redis.from_url(
        place.url,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        health_check_interval=0,
        **entry(place),
    )
    if settings.followed is not None:
        pool = client.connection_pool
        pool.connection_class = following_quietly(pool.connection_class, settings.followed)
    client.response_callbacks.clear()
    return client
