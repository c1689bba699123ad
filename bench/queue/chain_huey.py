"""huey with one worker thread: init -> run -> eval, each job enqueues the next."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

from huey import RedisHuey

from bench.queue import probe
from bench.queue.client import serve

init, run, eval_ = (RedisHuey(name, url=probe.URL) for name in ("init", "run", "eval"))


@eval_.task()
def e(sent_at: float, payload: str) -> int:
    return probe.done(sent_at, payload)


@run.task()
def r(sent_at: float, payload: str) -> int:
    e(sent_at, payload)
    return 1


@init.task()
def i(sent_at: float, payload: str) -> int:
    r(sent_at, payload)
    return 1


def client() -> None:
    serve(i)
