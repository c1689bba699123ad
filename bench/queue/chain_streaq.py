"""streaq: init -> run -> eval, each job enqueues the next. A worker opens the one after it in its lifespan."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streaq import Worker

from bench.queue import probe
from bench.queue.client import serve_async

BULK = 100
logging.getLogger("streaq").setLevel(logging.WARNING)
eval_ = Worker(redis_url=probe.URL, queue_name="eval")


@asynccontextmanager
async def with_eval() -> AsyncIterator[None]:
    async with eval_:
        yield


run = Worker(redis_url=probe.URL, queue_name="run", lifespan=with_eval)


@asynccontextmanager
async def with_run() -> AsyncIterator[None]:
    async with run:
        yield


init = Worker(redis_url=probe.URL, queue_name="init", lifespan=with_run)


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


async def main() -> None:
    async def enqueue(sent_at: float, payload: str) -> Any:
        return await i.enqueue(sent_at, payload)

    async def bulk(jobs: int) -> int:
        for start in range(0, jobs, BULK):
            await init.enqueue_many([i.enqueue(0.0, probe.PAYLOAD) for _ in range(min(BULK, jobs - start))])
        return -(-jobs // BULK)

    async with init:
        await serve_async(enqueue, bulk)


def client() -> None:
    asyncio.run(main())
