"""rq with SimpleWorker (no fork a job): init -> run -> eval, each job enqueues the next."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import redis
from rq import Queue

from bench.queue import probe
from bench.queue.client import serve

connection = redis.Redis.from_url(probe.URL)
init, run, eval_ = (Queue(name, connection=connection) for name in ("init", "run", "eval"))


def e(sent_at: float, payload: str) -> int:
    return probe.done(sent_at, payload)


def r(sent_at: float, payload: str) -> int:
    eval_.enqueue(e, sent_at, payload)
    return 1


def i(sent_at: float, payload: str) -> int:
    run.enqueue(r, sent_at, payload)
    return 1


def client() -> None:
    serve(lambda sent_at, payload: init.enqueue(i, sent_at, payload))
