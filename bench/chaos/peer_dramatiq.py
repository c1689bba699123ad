"""dramatiq: an actor that sends to a second one; a silent worker's messages go back after two seconds."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from bench.chaos.peer_marks import PACE, URL, WORK_S, mark, names

dramatiq.set_broker(RedisBroker(url=URL, heartbeat_timeout=2_000, maintenance_chance=100_000))


@dramatiq.actor(max_retries=20, min_backoff=50, max_backoff=1_000)
def last(job: str) -> None:
    mark("end", job)


@dramatiq.actor(max_retries=20, min_backoff=50, max_backoff=1_000)
def first(job: str) -> None:
    mark("begin", job)
    time.sleep(WORK_S)
    last.send(job)


def send() -> None:
    for job in names():
        while True:
            try:
                first.send(job)
            except redis.RedisError:
                time.sleep(0.1)
            else:
                break
        mark("sent", job)
        time.sleep(1 / PACE)
