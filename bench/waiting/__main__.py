"""What requests that wait cost one API process: memory of each, idle CPU, and how soon a closed group reaches them.

    python -m bench.waiting [--polls 2000] [--streams 500] [--runs 200] [--rounds 3]

The requests are plain sockets of this process, spread over the runs. Each round starts a service, lets all of them
wait, and cancels one run after the other. Memory is what the service has more of than before the first of them.
"""

import argparse
import asyncio
import resource
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import httpx

from bench import measure
from bench.redis_server import private_server
from bench.report import goal, goal_lines, spread, write
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import announce_source, batch

IDLE_S: Final = 5.0
LOOK_S: Final = 1.0
AT_REST: Final = 0.08  # of a core: its duties alone


class Round(dict[str, float]):
    """The figures of one round."""


class Request:
    """One request that waits, and what has come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, run: str, *, stream: bool) -> "Request":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        accept = "text/event-stream" if stream else "application/json"
        path = f"/v1/runs/{run}/results" + ("" if stream else "?wait=60")
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
        return cls(reader, writer)

    async def told(self) -> float:
        """When the group has come."""
        await self._reader.readuntil(b"cancelled")
        return time.monotonic()

    def close(self) -> None:
        self._writer.close()


async def once(polls: int, streams: int, runs: int) -> Round:
    async with AsyncExitStack() as stack:
        server, _ = stack.enter_context(private_server())
        server.persist("everysec")
        settings = RedisSettings(url=server.unix_url)
        await announce_source(settings)
        api, url = await stack.enter_async_context(started(settings))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        port = httpx.URL(url).port
        assert port is not None
        for number in range(runs):
            await http.post("/v1/batches", json=batch(run=f"r{number}"))
        await _rested(api.pid)
        before = measure.rss_bytes([api.pid])
        waiting = [await Request.open(port, f"r{each % runs}", stream=each >= polls) for each in range(polls + streams)]
        await _rested(api.pid)
        grown = measure.rss_bytes([api.pid]) - before
        cpu_s = measure.fine_cpu_s([api.pid])
        await asyncio.sleep(IDLE_S)
        idle = (measure.fine_cpu_s([api.pid]) - cpu_s) / IDLE_S
        connections = int(server.info("clients")["connected_clients"])
        delays = [await _closed(http, number, waiting[number::runs]) for number in range(runs)]
        for each in waiting:
            each.close()
    return Round(
        kib_each=grown / 1024 / len(waiting),
        idle_cpu_pct=100 * idle,
        connections=float(connections),
        told_ms_p50=1000 * measure.percentile(delays, 0.5),
        told_ms_max=1000 * max(delays),
    )


async def _rested(pid: int) -> None:
    """Until the service has read everything that was sent: memory of requests that it has not met is not its own."""
    async with asyncio.timeout(120):
        used_s = measure.fine_cpu_s([pid])
        while True:
            await asyncio.sleep(LOOK_S)
            before_s, used_s = used_s, measure.fine_cpu_s([pid])
            if used_s - before_s < AT_REST * LOOK_S:
                return


async def _closed(http: httpx.AsyncClient, run: int, waiting: Sequence[Request]) -> float:
    """Seconds from the cancel of a run until the last of its requests has the group."""
    began = time.monotonic()
    (await http.post(f"/v1/runs/r{run}/cancel")).raise_for_status()
    return max(await asyncio.gather(*(each.told() for each in waiting))) - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waiting", description=__doc__)
    parser.add_argument("--polls", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    most = given.polls + given.streams + 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    rounds = [asyncio.run(once(given.polls, given.streams, given.runs)) for _ in range(given.rounds)]
    found = {name: spread([each[name] for each in rounds]) for name in rounds[0]}
    for name, each in found.items():
        print(f"{name:14} {each.median:9.2f}   {each.min:.2f} to {each.max:.2f}")
    goals = {"memory of a waiting request, KiB": goal(found["kib_each"].median, "<= 20")}
    print(goal_lines(goals))
    print(write("waiting", goals, {"machine": measure.describe_machine(), "figures": found}))


if __name__ == "__main__":
    main()
