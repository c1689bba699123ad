"""saq: init -> run -> eval, each job enqueues the next."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-any-return,misc"

import asyncio
import logging
from typing import Any

from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from bench.queue import probe
from bench.queue.client import serve_async

logging.getLogger("saq").setLevel(logging.WARNING)
init, run, eval_ = (RedisQueue(Redis.from_url(probe.URL), name=name) for name in ("init", "run", "eval"))


async def e(ctx: Any, *, sent_at: float, payload: str) -> int:  # noqa: ARG001
    return probe.done(sent_at, payload)


async def r(ctx: Any, *, sent_at: float, payload: str) -> int:  # noqa: ARG001
    await eval_.enqueue("e", sent_at=sent_at, payload=payload)
    return 1


async def i(ctx: Any, *, sent_at: float, payload: str) -> int:  # noqa: ARG001
    await run.enqueue("r", sent_at=sent_at, payload=payload)
    return 1


init_settings = {"queue": init, "functions": [i]}
run_settings = {"queue": run, "functions": [r]}
eval_settings = {"queue": eval_, "functions": [e]}


async def main() -> None:
    await init.connect()

    async def enqueue(sent_at: float, payload: str) -> Any:
        return await init.enqueue("i", sent_at=sent_at, payload=payload)

    await serve_async(enqueue)
    await init.disconnect()


def client() -> None:
    asyncio.run(main())
