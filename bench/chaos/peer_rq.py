"""rq: a job that enqueues a second one, each retried after its worker's death."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import time

import redis
from rq import Queue, Retry

from bench.chaos.peer_marks import PACE, URL, WORK_S, mark, names

queue = Queue("chaos", connection=redis.Redis.from_url(URL))
OPTIONS = {"retry": Retry(max=20), "result_ttl": 0, "job_timeout": 5}


def last(job: str) -> None:
    mark("end", job)


def first(job: str) -> None:
    mark("begin", job)
    time.sleep(WORK_S)
    queue.enqueue(last, job, **OPTIONS)


def send() -> None:
    for job in names():
        while True:
            try:
                queue.enqueue(first, job, job_id=job, **OPTIONS)
            except redis.RedisError:
                time.sleep(0.1)
            else:
                break
        mark("sent", job)
        time.sleep(1 / PACE)
