"""ardiq: a task that enqueues a second one; entries idle for two seconds are taken over."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import asyncio

from ardiq import Ardiq

from bench.chaos.peer_marks import PACE, URL, WORK_S, mark, names

app = Ardiq(redis_url=URL, queue_name="chaos", idle_timeout_ms=2_000, concurrency=8)


@app.task(name="last")
async def last(job: str) -> None:
    mark("end", job)


@app.task(name="first")
async def first(job: str) -> None:
    mark("begin", job)
    await asyncio.sleep(WORK_S)
    await last.enqueue(job)


async def sending() -> None:
    for job in names():
        while True:
            try:
                await first.enqueue(job)
            except Exception:
                await asyncio.sleep(0.1)
            else:
                break
        mark("sent", job)
        await asyncio.sleep(1 / PACE)


def send() -> None:
    asyncio.run(sending())
