"""ardiq (Rust core, Python >= 3.12): init -> run -> eval, each job enqueues the next."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import asyncio

from ardiq import Ardiq

from bench.queue import probe
from bench.queue.client import serve_async

BULK = 100
init, run, eval_ = (Ardiq(redis_url=probe.URL, queue_name=name) for name in ("init", "run", "eval"))


@eval_.task(name="e")
async def e(sent_at: float, payload: str) -> int:
    return probe.done(sent_at, payload)


@run.task(name="r")
async def r(sent_at: float, payload: str) -> int:
    await e.enqueue(sent_at, payload)
    return 1


@init.task(name="i")
async def i(sent_at: float, payload: str) -> int:
    await r.enqueue(sent_at, payload)
    return 1


async def bulk(jobs: int) -> int:
    for start in range(0, jobs, BULK):
        await init.enqueue_many([i.prepare(0.0, probe.PAYLOAD) for _ in range(min(BULK, jobs - start))])
    return -(-jobs // BULK)


def client() -> None:
    asyncio.run(serve_async(i.enqueue, bulk))
