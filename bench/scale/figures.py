"""The cost of a piece of work, by what Redis says: commands, bytes, its CPU, and its slowest script."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from bench.redis_server import RedisServer

_OURS: Final = frozenset({"cmdstat_info", "cmdstat_slowlog|reset", "cmdstat_slowlog|get", "cmdstat_config|set"})


class Cost(NamedTuple):
    """Of one turn. Commands include those that scripts call; `script_ms` is the slowest of its scripts."""

    commands: float
    kib: float
    redis_ms: float
    wall_ms: float
    script_ms: float


async def cost(
    server: RedisServer,
    act: Callable[[], Awaitable[Any]],
    *,
    before: Callable[[], Awaitable[Any]] | None = None,
    turns: int = 5,
) -> Cost:
    """The mean of some turns; `before` each of them something changes, which is not counted."""
    server.client.config_set("slowlog-log-slower-than", 0)
    server.client.config_set("slowlog-max-len", 100_000)
    sums, slowest = [0.0] * 4, 0.0
    for _ in range(turns):
        if before is not None:
            await before()
        server.client.execute_command("SLOWLOG", "RESET")
        was, began = _read(server), time.perf_counter()
        await act()
        wall_ms = 1000 * (time.perf_counter() - began)
        now = _read(server)
        slowest = max(slowest, _slowest_script_ms(server))
        sums = [total + value for total, value in zip(sums, (*map(_less, now, was), wall_ms), strict=True)]
    return Cost(*(round(total / turns, 2) for total in sums), script_ms=round(slowest, 2))


def _less(now: float, was: float) -> float:
    return now - was


def _read(server: RedisServer) -> tuple[float, float, float]:
    """Commands, KiB sent, milliseconds of CPU so far, without the commands of this bench."""
    stats, cpu_ms = server.info("stats"), 1000 * server.cpu_s()
    commands = sum(int(each["calls"]) for name, each in server.info("commandstats").items() if name not in _OURS)
    return commands, stats["total_net_output_bytes"] / 1024, cpu_ms


def _slowest_script_ms(server: RedisServer) -> float:
    entries: Any = server.client.execute_command("SLOWLOG", "GET", -1)
    return max(
        (took_us / 1000 for _, _, took_us, command, *_ in entries if command[0] in {b"EVALSHA", b"EVAL"}), default=0.0
    )
