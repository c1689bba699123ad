"""taskiq with the Redis stream broker: init -> run -> eval, each job enqueues the next.

`consumer_id="0"` lets a group that is created late read its stream from the beginning.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import asyncio

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.queue import probe
from bench.queue.client import serve_async


def stage(name: str) -> RedisStreamBroker:
    broker = RedisStreamBroker(url=probe.URL, queue_name=name, consumer_group_name=name, consumer_id="0")
    return broker.with_result_backend(RedisAsyncResultBackend(redis_url=probe.URL, result_ex_time=600))


init, run, eval_ = stage("init"), stage("run"), stage("eval")


@eval_.task(task_name="e")
async def e(sent_at: float, payload: str) -> int:
    return probe.done(sent_at, payload)


@run.task(task_name="r")
async def r(sent_at: float, payload: str) -> int:
    await e.kiq(sent_at, payload)
    return 1


@init.task(task_name="i")
async def i(sent_at: float, payload: str) -> int:
    await r.kiq(sent_at, payload)
    return 1


async def main() -> None:
    await init.startup()
    await serve_async(i.kiq)
    await init.shutdown()


def client() -> None:
    asyncio.run(main())
