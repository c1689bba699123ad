"""dramatiq with the Redis broker and stored results: init -> run -> eval, each job sends the next."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.queue import probe
from bench.queue.client import serve

broker = RedisBroker(url=probe.URL)
broker.add_middleware(Results(backend=RedisBackend(url=probe.URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True, actor_name="e", queue_name="eval")
def e(sent_at: float, payload: str) -> int:
    return probe.done(sent_at, payload)


@dramatiq.actor(store_results=True, actor_name="r", queue_name="run")
def r(sent_at: float, payload: str) -> int:
    e.send(sent_at, payload)
    return 1


@dramatiq.actor(store_results=True, actor_name="i", queue_name="init")
def i(sent_at: float, payload: str) -> int:
    r.send(sent_at, payload)
    return 1


def client() -> None:
    serve(i.send)
