"""CPU of a trainer's two calls over HTTP, in its process and in the API's: groups submitted, results acknowledged.

    python -m bench.waiting.calls [--groups 250] [--rounds 12]

Each round submits a batch, has its run cancelled, reads the records and acknowledges them in one call. Redis has the
shipped `ops/redis.conf`. The API's CPU is that of the whole process from a call to its answer, so that its duties and
the admission of the first groups are in it.
"""

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from bench import measure
from bench.redis_server import private_server
from bench.report import goal, goal_lines, spread, write
from prorl_mq.client import AsyncClient
from prorl_mq.schema.messages import BatchRequest
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import announce_source, batch

LOOK_S: Final = 0.3
AT_REST: Final = 0.05  # of a core: its duties alone
WARM: Final = 2
CALLS: Final = ("submit", "ack")


async def measured(groups: int, rounds: int) -> list[dict[str, float]]:
    """CPU of each call in milliseconds, by round."""
    async with AsyncExitStack() as stack:
        server, _ = stack.enter_context(private_server())
        settings = RedisSettings(url=server.unix_url)
        await announce_source(settings)
        api, url = await stack.enter_async_context(started(settings))
        client = await stack.enter_async_context(AsyncClient(url))
        rows = [await once(client, api.pid, number, groups) for number in range(WARM + rounds)]
        return rows[WARM:]


async def once(client: AsyncClient, pid: int, number: int, groups: int) -> dict[str, float]:
    found: dict[str, float] = {}

    async def call(name: str, calling: Any) -> None:
        await rested(pid)
        api_s, cpu_s = measure.fine_cpu_s([pid]), time.process_time()
        await calling
        cpu_s = time.process_time() - cpu_s
        found[f"{name}: client"], found[f"{name}: API"] = 1e3 * cpu_s, 1e3 * (measure.fine_cpu_s([pid]) - api_s)

    run = f"r{number}"
    request = msgspec.convert(batch(run=run, name="b", groups=groups), BatchRequest)
    await call("submit", client.submit(request))
    await client.cancel("run", run)
    cursors = [closed.cursor async for closed in client.groups(run, "b")]
    assert len(cursors) == groups, len(cursors)
    await call("ack", client.ack(run, cursors))
    return found | {f"both: {who}": sum(found[f"{name}: {who}"] for name in CALLS) for who in ("client", "API")}


async def rested(pid: int) -> None:
    """Until the process uses no more CPU than its duties."""
    used_s = measure.fine_cpu_s([pid])
    while True:
        await asyncio.sleep(LOOK_S)
        before_s, used_s = used_s, measure.fine_cpu_s([pid])
        if used_s - before_s < AT_REST * LOOK_S:
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waiting.calls", description=__doc__)
    parser.add_argument("--groups", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    machine = measure.describe_machine()
    rows = asyncio.run(measured(given.groups, given.rounds))
    found = {name: spread([row[name] for row in rows]) for name in rows[0]}
    for name, each in found.items():
        print(f"{name:15} {each.median:7.2f} ms   {each.min:.2f} to {each.max:.2f}")
    goals = {
        "client, both calls, ms": goal(found["both: client"].median, "<= 1"),
        "API, both calls, ms": goal(found["both: API"].median, "<= 5"),
    }
    print(goal_lines(goals))
    print(write("trainer-calls", goals, {"machine": machine | {"load_at_end": measure.load()}, "figures": found}))


if __name__ == "__main__":
    main()
