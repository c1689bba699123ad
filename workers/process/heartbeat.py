"""The heartbeat: a thread and a connection of its own renew leases, so that no handler can hold them up."""

import logging
import threading
from collections.abc import Callable

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import JobRef, Token
from prorl_mq.schema.items import Lease
from prorl_mq.store.server.beat import Beat
from prorl_mq.store.server.connection import RedisSettings

log = logging.getLogger("workers.process.heartbeat")

NEWS_S = 1.0  # at least, between two beats
Answers = Callable[[list[tuple[JobRef, Token, str]]], None]


class Heartbeat:
    """Beats every third of a lease, more often while Redis does not answer. `answered` gets what was said of each job,
    in the heartbeat's thread.
    """

    def __init__(
        self,
        settings: RedisSettings,
        name: str,
        *,
        lease_ms: int,
        about: Callable[[], dict[str, str | int]],
        leases: Callable[[], list[Lease]],
        answered: Answers,
    ) -> None:
        self._lease_ms = lease_ms
        self._about, self._leases, self._answered = about, leases, answered
        self._beat = Beat(settings, name, lease_ms=lease_ms)
        self._missed, self._said = 0, ""
        self._stop, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        """The first beat has happened when this returns, so that the worker is known before it reads."""
        self._try_beat()
        self._thread.start()

    def soon(self) -> None:
        """There is news to tell: the next beat comes within a second."""
        self._news.set()

    def stop(self) -> None:
        """Idempotent."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self._beat.close()

    def _beat_on(self) -> None:
        ok = True
        while not self._stop.wait(min(NEWS_S, self._lease_ms / 3000) if ok else min(0.25, self._lease_ms / 10_000)):
            if ok:
                self._news.wait(max(0.0, self._lease_ms / 3000 - NEWS_S))
            self._news.clear()
            if self._stop.is_set():
                return
            ok = self._try_beat()

    def _try_beat(self) -> bool:
        """Sends one heartbeat; True if Redis answered. No error ends the thread: all leases of this worker need it. An
        outage is told once for each reason, and at its end: there are four beats a second, of every worker.
        """
        try:
            held = self._leases()
            said = self._beat.send(self._about(), held)
            self._answered([(lease.ref, lease.token, word) for lease, word in zip(held, said, strict=True)])
        except RedisUnavailable as error:
            self._missed += 1
            if str(error) != self._said:
                log.warning("%s", error)
            self._said = str(error)
            return False
        except Exception:
            log.exception("a heartbeat failed")
            return False
        if self._missed:
            log.warning("the heartbeat is answered again, after %d that were not", self._missed)
        self._missed, self._said = 0, ""
        return True
