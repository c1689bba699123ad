"""`python -m bench.cells`: 1, 2 and 4 namespaces on a cluster of six nodes, then pauses of writers by kills and moves.

Each namespace has a client process, which takes batches of 64 jobs through all stages by the verbs alone. What a job
costs Redis says what a namespace carries on a core of its own; rates are of this machine, load stated.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.items import Advance, Finish
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.server.connection import RedisSettings
from tests.cells.stand import PRIMARIES, SECRET, Cluster, cluster
from tests.ha.stand import Writers, queue_of
from tests.support.queue import RUN, Queue, record

GROUPS: Final = 64
BATCHES: Final = 40
ROUNDS: Final = 3
COUNTS: Final = (1, 2, 4)
FAULTS: Final = 3
Fault = Callable[[Cluster, str], Awaitable[object]]


class Turn(msgspec.Struct):
    """One client's work: jobs a second while it was measured, and its own CPU seconds over all its jobs."""

    rate: float
    own_s: float


async def through(queue: Queue, batch: str) -> None:
    """64 groups of one job, submitted, admitted and taken through INIT, RUN and EVAL."""
    made = [queue.new(f"{batch}-{place}", batch=batch, n=1) for place in range(GROUPS)]
    await queue.store.submit(made[0][0]._replace(groups=GROUPS, digest=batch), [group for _, group in made])
    wanted = await asyncio.gather(*(queue.wanted(group.ref) for _, group in made))
    await queue.store.admit(RUN, wanted)
    held = await queue.take(Stage.INIT, count=GROUPS)
    await queue.store.advance([Advance(each, "n", b"from init") for each in held])
    held = await queue.take(Stage.RUN, "n", count=GROUPS)
    await queue.store.advance([Advance(each, None, b"from run", "", 100) for each in held])
    held = await queue.take(Stage.EVAL, count=GROUPS)
    row = [Finish(each, Outcome.COMPLETED, record(each.ref, Outcome.COMPLETED)) for each in held]
    said = await queue.store.finish(row)
    if len(said) != GROUPS or set(said) != {"finished"}:
        raise SystemExit(f"{batch}: {len(said)} jobs, {set(said)}")


async def client(url: str, namespace: str, label: str) -> Turn:
    queue = queue_of(RedisSettings(url=url, namespace=namespace, password=SECRET))
    await queue.prepare("n")
    await through(queue, f"{label}-first")
    began, own_s = monotonic(), time.process_time()
    for number in range(1, BATCHES):
        await through(queue, f"{label}-{number}")
    jobs = (BATCHES - 1) * GROUPS
    await queue.redis.aclose()
    return Turn(jobs / (monotonic() - began), time.process_time() - own_s)


async def cpu_s(here: Cluster) -> float:
    """CPU seconds of the primaries."""
    total = 0.0
    for node in here.nodes[:PRIMARIES]:
        about: bytes = await node.ask("INFO", "cpu")
        found = dict(line.split(b":") for line in about.split() if b":" in line)
        total += float(found[b"used_cpu_user"]) + float(found[b"used_cpu_sys"])
    return total


async def side_by_side(here: Cluster, namespaces: Sequence[str], label: str) -> tuple[float, float, float]:
    """Jobs a second of all clients, and microseconds of CPU a job: of the primaries, of the clients."""
    before = await cpu_s(here)
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.cells", here.settings(name).url, name, label, stdout=asyncio.subprocess.PIPE
        )
        for name in namespaces
    ]
    turns = [msgspec.json.decode((await each.communicate())[0], type=Turn) for each in clients]
    jobs = len(namespaces) * BATCHES * GROUPS
    redis_us = 1e6 * (await cpu_s(here) - before) / jobs
    own_us = 1e6 * sum(turn.own_s for turn in turns) / (jobs - len(namespaces) * GROUPS)
    return sum(turn.rate for turn in turns), redis_us, own_us


async def costs() -> None:
    async with cluster() as here:
        names = here.namespaces(max(COUNTS))
        found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in COUNTS}
        for turn in range(ROUNDS):
            for count in COUNTS:
                found[count].append(await side_by_side(here, names[:count], f"{turn}-{count}"))
    for count, row in found.items():
        rate, redis_us, own_us = (statistics.median(column) for column in zip(*row, strict=True))
        print(
            f"  {count} namespaces: {rate:.0f} jobs/s, Redis {redis_us:.0f} us a job "
            f"(a core carries {1e6 / redis_us:.0f}/s), clients {own_us:.0f} us"
        )


async def pauses(label: str, fault: Fault) -> None:
    """The longest time without an acknowledgement of four writers, and what was lost."""
    slowest, lost, acknowledged = list[float](), 0, 0
    for _ in range(FAULTS):
        async with cluster() as here:
            settings = here.settings(here.namespaces(1)[0])
            writers = Writers(settings, queue_of(settings))
            async with writers.writing():
                await writers.more(100)
                writers.slowest_s = 0.0
                await fault(here, settings.namespace)
                await writers.more(200)
            slowest.append(writers.slowest_s)
            lost += len(await writers.lost())
            acknowledged += len(writers.acknowledged)
            await writers.queue.redis.aclose()
    print(
        f"  {label}: pause {statistics.median(slowest):.2f} s (longest {max(slowest):.2f}) of {FAULTS}, "
        f"lost {lost} of {acknowledged}"
    )


async def killed(here: Cluster, namespace: str) -> None:
    here.kill(await here.owner(namespace))


async def everything() -> None:
    print(f"load {os.getloadavg()[0]:.0f}")
    await costs()
    await pauses("the slot moves (MIGRATESLOTS)", Cluster.move)
    await pauses("CLUSTER FAILOVER", Cluster.fail_over)
    await pauses("the primary is killed", killed)


def main() -> None:
    if len(sys.argv) > 1:
        sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(client(*sys.argv[1:]))))
        return
    asyncio.run(everything())


if __name__ == "__main__":
    main()
