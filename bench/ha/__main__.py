"""`python -m bench.ha`: the cost of WAIT on batches of 64 groups, and fail-overs under writers, killed and stopped.

Exits with 1 where anything acknowledged in replicated mode is lost. Numbers are of this machine, load stated.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
from collections.abc import Sequence

from prorl_mq.clock import monotonic
from prorl_mq.errors import ServerUnfit
from prorl_mq.process.redis_server import embedded_binary, installed_binary
from prorl_mq.store.server import fitness, replicas
from tests.ha.network import missing
from tests.ha.partitions import PRIMARY, REST, machines
from tests.ha.stand import Stand, stand

BATCHES = 300
GROUPS = 64
ON_DISK = 20  # of batches, each of which may take a second


async def batches(here: Stand, label: str, count: int = BATCHES) -> list[float]:
    """Milliseconds of each submission of 64 groups of about a kilobyte, by one client."""
    took = []
    for number in range(count):
        made = [here.queue.new(f"{label}-{number}-{place}", batch=f"{label}-{number}", n=1) for place in range(GROUPS)]
        batch = made[0][0]._replace(groups=GROUPS, digest=f"{label} {number}")
        began = monotonic()
        await here.store.submit(batch, [group for _, group in made])
        took.append(1000 * (monotonic() - began))
    return took


async def costs(binary: str) -> None:
    async with stand(binary=binary) as here:
        rounds: dict[str, list[float]] = {"without": [], "confirmed": []}
        for turn in range(3):
            for label, acks in (("without", 0), ("confirmed", 1)):
                await here.whole()
                await replicas.switch(here.store, acks)
                rounds[label] += await batches(here, f"{label}{turn}")
        without, confirmed = (statistics.median(rounds[label]) for label in ("without", "confirmed"))
        for label, took in rounds.items():
            p99 = statistics.quantiles(took, n=100)[98]
            print(f"  64 groups, {label}: p50 {statistics.median(took):.2f} ms, p99 {p99:.2f} ms")
        print(f"  ratio of medians {confirmed / without:.2f}")
        if await waits_for_disks(here):
            await replicas.switch(here.store, 1, synced=True)
            on_disk = statistics.median(await batches(here, "synced", ON_DISK))
            print(f"  64 groups, on disks (everysec): p50 {on_disk:.2f} ms, ratio {on_disk / without:.1f}")


async def waits_for_disks(here: Stand) -> bool:
    """Redis has WAITAOF since 7.2."""
    try:
        await fitness.syncs(here.store.redis, here.store.keys, replicas=1)
    except ServerUnfit:
        return False
    return True


async def partitions(binary: str, rounds: int) -> int:
    """The longest pause of writers when the primary is cut off from all but themselves, and how much was lost."""
    if lacking := missing():
        print(f"  no partitions: {lacking}")
        return 0
    pauses, acknowledged, lost = [], 0, 0
    for _ in range(rounds):
        async with machines(binary=binary) as (here, net):
            await here.replicated()
            async with here.writing():
                await here.more(50)
                here.slowest_s = 0.0
                net.part([PRIMARY], (*REST, "s0"))
                await here.more(50)
                pauses.append(here.slowest_s)
                net.heal()
            lost += len(await here.lost())
            acknowledged += len(here.acknowledged)
    print(f"  cut off {rounds} times: pause p50 {statistics.median(pauses):.1f} s, longest {max(pauses):.1f} s")
    print(f"  {lost} of {acknowledged} acknowledged groups lost")
    return lost


async def failovers(binary: str, rounds: int) -> int:
    """The longest pause of writers at each fail-over, and how much was lost."""
    async with stand(binary=binary) as here:
        await here.replicated()
        pauses, acknowledged = [], 0
        async with here.writing():
            for number in range(rounds):
                await here.more(50)
                here.slowest_s = 0.0
                kind = signal.SIGKILL if number % 2 == 0 else signal.SIGSTOP
                pid = here.signal_primary(kind)
                await here.more(50)
                pauses.append(here.slowest_s)
                if kind is signal.SIGSTOP:
                    os.kill(pid, signal.SIGCONT)
                await here.whole()
                acknowledged = len(here.acknowledged)
        lost = len(await here.lost())
        killed, stopped = pauses[::2], pauses[1::2]
        for label, found in (("killed", killed), ("stopped", stopped)):
            print(
                f"  {label} {len(found)} times: pause p50 {statistics.median(found):.1f} s, longest {max(found):.1f} s"
            )
        print(f"  {lost} of {acknowledged} acknowledged groups lost")
        return lost


async def run(rounds: int, wanted: Sequence[str]) -> int:
    lost = 0
    for name, binary in (("redis", installed_binary()), ("valkey", embedded_binary())):
        if binary is not None and name in wanted:
            print(f"{name}, load {os.getloadavg()[0]:.1f}", flush=True)
            await costs(binary)
            lost += await failovers(binary, rounds)
            lost += await partitions(binary, rounds // 2)
    return int(lost > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ha", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="fail-overs with each server")
    parser.add_argument("--only", nargs="+", default=["redis", "valkey"], help="servers")
    given = parser.parse_args()
    return asyncio.run(run(given.rounds, given.only))


if __name__ == "__main__":
    sys.exit(main())
