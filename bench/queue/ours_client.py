"""The trainer of our own case: submits groups of 8 through the client, over HTTP or straight over Redis."""

import asyncio
import itertools
import os
import time

from bench.queue import probe
from bench.queue.client import serve_async
from bench.queue.noop import DATA_SOURCE, PADDING, SENT_AT
from prorl_mq.client import AsyncClient
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task

GROUP_SIZE = 8
GROUPS_PER_BATCH = 250
BATCH_BYTES = 8 << 20  # the ingress takes bodies of up to 16 MiB
RUN, LONE = "bench", "lone"


def groups(jobs: int, sent_at: float) -> list[GroupRequest]:
    """`jobs` samples in groups of 8, or one group of one."""
    payload = {PADDING: probe.PAYLOAD, **({SENT_AT: sent_at} if sent_at else {})}
    task = Task(task_id="noop", data_source=DATA_SOURCE, payload=payload)
    return [GroupRequest(task=task, n=min(jobs, GROUP_SIZE)) for _ in range(max(1, jobs // GROUP_SIZE))]


async def main() -> None:
    names = (f"b{os.getpid()}-{number}" for number in itertools.count())
    async with AsyncClient(os.environ["BENCH_DOOR"]) as client:

        async def enqueue(sent_at: float, _: str) -> None:
            await client.submit(BatchRequest(run_id=RUN, batch_id=next(names), groups=groups(1, sent_at)))

        async def bulk(jobs: int) -> int:
            fitting = BATCH_BYTES // max(1, len(probe.PAYLOAD))
            size, requests = max(1, min(GROUPS_PER_BATCH, fitting)) * GROUP_SIZE, 0
            for start in range(0, jobs, size):
                batch = groups(min(size, jobs - start), 0.0)
                await client.submit(BatchRequest(run_id=RUN, batch_id=next(names), groups=batch))
                requests += 1
            return requests

        results = client.results(LONE)

        async def record() -> float:
            began, name = time.perf_counter(), next(names)
            await client.submit(BatchRequest(run_id=LONE, batch_id=name, groups=groups(1, 0.0)))
            closed = await anext(results)
            took = time.perf_counter() - began
            await client.ack(LONE, [closed.cursor])
            return took

        await serve_async(enqueue, bulk, record)


def client() -> None:
    asyncio.run(main())
