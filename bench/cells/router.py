"""`python -m bench.cells.router`: requests to a cell straight and through the router, alternating."""

import asyncio
import os
import statistics
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from bench import measure
from bench.redis_server import private_server
from prorl_mq.clock import monotonic
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import batch
from tests.cells.town import router, town

ROUNDS: Final = 5
REQUESTS: Final = 2_000
AT_ONCE: Final = 16


class Turn(NamedTuple):
    """Requests a second, and milliseconds of one (p50, p99)."""

    rate: float
    p50_ms: float
    p99_ms: float


async def asked(url: str) -> Turn:
    """A page of results that is there at once: what a trainer asks for most."""
    took: list[float] = []
    left = iter(range(REQUESTS))
    async with aiohttp.ClientSession() as client:

        async def ask() -> None:
            for _ in left:
                began = monotonic()
                async with client.get(f"{url}/v1/runs/run/results?wait=0") as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise SystemExit(f"{url}: {answer.status}")
                took.append(1000 * (monotonic() - began))

        began = monotonic()
        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        rate = REQUESTS / (monotonic() - began)
    return Turn(rate, measure.percentile(took, 0.5), measure.percentile(took, 0.99))


def router_pid() -> int:
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in measure.process_tree(os.getpid())}
    [pid] = [pid for pid, command in commands.items() if b"api.cells" in command.split(b"\0")]
    return pid


async def compared(directory: Path, settings: RedisSettings) -> None:
    async with town(directory, settings, ["a", "b"]) as here, router(here.file) as routed:
        await routed.post("/v1/batches", json=batch())
        [cell] = await here.holding("run")
        straight, through = here.urls[cell], str(routed.base_url).rstrip("/")
        pid = router_pid()
        rows: dict[str, list[Turn]] = {"straight": [], "routed": []}
        cpu = list[float]()
        for _ in range(ROUNDS):
            rows["straight"].append(await asked(straight))
            before = measure.cpu_s([pid])
            rows["routed"].append(await asked(through))
            cpu.append(1000 * (measure.cpu_s([pid]) - before) / REQUESTS)
    for name, turns in rows.items():
        rate, p50, p99 = (statistics.median(column) for column in zip(*turns, strict=True))
        print(f"  {name}: {rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {AT_ONCE} at once")
    print(f"  the router: {statistics.median(cpu):.2f} ({min(cpu):.2f}..{max(cpu):.2f}) ms of CPU a request")


def main() -> None:
    with private_server() as (server, scratch):
        settings = RedisSettings(url=server.unix_url, namespace="bench")
        asyncio.run(compared(scratch, settings))


if __name__ == "__main__":
    main()
