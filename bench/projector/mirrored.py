"""Our system with a projector and rq-dashboard's page beside it."""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import redis

from bench.queue.ours import START_S, Ours
from bench.queue.processes import last_words, start_worker
from bench.queue.system import SystemFailed
from prorl_mq.cli.local import programs
from prorl_mq.servers import DATABASE
from prorl_mq.store.server.connection import RedisSettings

EVENTS = "{prorl}:events"


class Mirrored(Ours):
    """`Ours`, with the processes that `prorl-mq dashboard` starts as roles of their own."""

    def start(self) -> None:
        super().start()
        settings = RedisSettings(url=self.setting.redis_url)
        self.token = secrets.token_urlsafe()
        pair = programs.dashboard(self.setting.scratch, settings, port=0, database=DATABASE.default, token=self.token)
        for program in pair:
            env = {**self.env, **program.env}
            self.workers[program.name] = [start_worker(program.argv, env, self.log(program.name))]

    def page(self) -> httpx.Client:
        """A browser on the page."""
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"http://\S+", self.log("dashboard").read_text(errors="replace"))):
            self.processes()
            if time.monotonic() > deadline:
                raise SystemFailed(f"the page did not start: {last_words(self.log('dashboard'))}")
            time.sleep(0.02)
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=found.group(), headers=headers, timeout=60, trust_env=False)


class Follower:
    """How far the mirror is behind the event stream, seen from outside."""

    def __init__(self, client: "redis.Redis", socket: str) -> None:
        self._queue = client
        self._mirror = redis.Redis(unix_socket_path=socket, db=DATABASE.default, protocol=2)
        self._seen = b"0"

    def close(self) -> None:
        self._mirror.close()

    def caught_up(self) -> bool:
        last: Any = self._queue.xrevrange(EVENTS, count=1)
        return not last or self._cursor() == last[0][0]

    def wait(self, within_s: float) -> float:
        """Seconds until the mirror shows the last event."""
        began = time.perf_counter()
        while not self.caught_up():
            if time.perf_counter() - began > within_s:
                raise SystemFailed(f"the mirror is still behind after {within_s:.0f} s")
            time.sleep(0.005)
        return time.perf_counter() - began

    def lags(self) -> Sequence[float]:
        """Seconds from each event until it was shown, for what was shown since the last call."""
        cursor, now = self._cursor(), time.time()
        if cursor is None or cursor == self._seen:
            return []
        rows: Any = self._queue.xrange(EVENTS, min=f"({self._seen.decode()}", max=cursor.decode())
        self._seen = cursor
        return [now - int(entry.partition(b"-")[0]) / 1000 for entry, _ in rows]

    def registries(self) -> Mapping[str, int]:
        """Records in each registry that has any, and keys in all."""
        found: dict[str, int] = {"keys": int(str(self._mirror.dbsize()))}
        for kind in ("finished", "failed", "canceled", "wip"):
            for stage in ("init", "run", "eval"):
                count = int(str(self._mirror.zcard(f"rq:{kind}:{stage}")))
                found |= {f"{kind} {stage}": count} if count else {}
        return found

    def _cursor(self) -> bytes | None:
        found: Any = self._mirror.hget("rq:projector", "cursor")
        return found
