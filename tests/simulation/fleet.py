"""A deployment of many nodes in virtual time: what its work costs the one server that it shares, with nodes that die.

    python -m tests.simulation.fleet --nodes 1000 --slots 64 --rollout-s 60 --for-s 60

The code and the server are those of a service; the time of rollouts is virtual, and the network a simulated one. The
slots of RUN fill up before anything is measured. At the end every group has closed once, those of the dead nodes too.
"""

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Stage, Task, Verdict
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store.server.connection import connect
from tests.simulation.loop import Loop, Process
from tests.simulation.network import Link, Network, Parked
from tests.simulation.options import Options
from tests.simulation.replay import no_collection
from tests.simulation.rollouts import record
from tests.simulation.server import Server
from tests.simulation.trace import Command
from tests.simulation.work import NAMESPACE, SOURCE, TENANT, submitted
from tests.simulation.world import World, stage_of
from workers.handler import Eval, Init, Prepared, Ran, Run, Score
from workers.process.worker import Worker
from workers.settings import WorkerSettings
from workers.stages.registry import Registry

LEASE_MS: Final = 15_000
INIT_S, EVAL_S = 2.0, 1.0
TURN_S: Final = 15.0  # of a rollout, which logs what was sampled and what that was answered
N, GROUPS, TRAINERS = 8, 32, 8  # samples a group, groups a batch, runs
AHEAD: Final = 1.25  # jobs that trainers keep submitted, in slots of RUN
SPARE: Final = 1.5  # slots of INIT and EVAL, in what their work takes at least
TURNS: Final = 1 << 40  # of the loop: no bound


class Steady:
    """A task family whose rollouts take half to one and a half of a mean time."""

    data_sources = (SOURCE,)
    schema = Schema()
    needs_sandbox = False

    def __init__(self, rollout_s: float, random: Random) -> None:
        self.rollout_s, self.random = rollout_s, random
        self.ended = 0

    async def init(self, _: Init) -> Prepared:
        await asyncio.sleep(INIT_S)
        return Prepared(carry=1)

    async def run(self, context: Run) -> Ran:
        log = context.log
        assert log is not None
        left_s = self.rollout_s * (0.5 + self.random.random())
        turn = len(log.before) // 2
        while left_s > 0:
            await asyncio.sleep(min(TURN_S, left_s))
            left_s -= TURN_S
            for place in (2 * turn, 2 * turn + 1):
                await log.append(record(place, place), wait=False)
            turn += 1
        return Ran(trajectory=None, export=1)

    async def eval(self, _: Eval) -> Score:
        await asyncio.sleep(EVAL_S)
        self.ended += 1
        return Score(reward=float(self.random.randrange(2)))


class Wide(Network):
    """A network with thousands of parked readers, which keeps no history."""

    def __init__(self, loop: Loop, server: Server, random: Random) -> None:
        super().__init__(loop, server, random, random)
        self._keys_of: dict[Link, tuple[Any, ...]] = {}

    def _after(self, now_us: int, packed: bytes, commands: Any, replies: Any) -> None:
        super()._after(now_us, packed, commands, replies)
        self.log.clear()

    def _park(self, parked: Parked) -> None:
        super()._park(parked)
        self._keys_of[parked.link] = parked.keys

    def _unpark(self, link: Link) -> None:
        for key in self._keys_of.pop(link, ()):
            left = [each for each in self._parked.get(key, ()) if each.link is not link]
            if left:
                self._parked[key] = left
            else:
                self._parked.pop(key, None)

    def _wake(self, command: Command) -> None:
        """One reader after the other gets what there is; those behind the first that gets nothing get nothing."""
        for key in dict.fromkeys(word for word in command if isinstance(word, (str, bytes)) and word in self._parked):
            for parked in list(self._parked.get(key, ())):
                if (reply := self._try(parked)) is None:
                    break
                self._unpark(parked.link)
                self._reply(parked.link, [reply])

    @property
    def links(self) -> int:
        return len(self._links)


class Reading(NamedTuple):
    """What the server and the service have done so far."""

    at_s: float  # virtual
    ended: int  # jobs
    calls: int
    cpu_s: float  # of the server
    bytes: int  # over its connections

    def since(self, before: "Reading") -> "Reading":
        return Reading(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What is asked for."""

    nodes: int
    slots: int
    rollout_s: float
    for_s: float  # measured
    lost: int  # nodes that die in the midst of it

    @property
    def rate(self) -> float:
        """Jobs a second at which all slots of RUN are taken."""
        return self.nodes * self.slots / self.rollout_s

    def processes(self, seconds: float) -> int:
        """That have the slots of a stage whose work takes so long."""
        return max(1, round(SPARE * self.rate * seconds / self.slots))


class FleetWorld(World):
    """The history of a fleet."""

    def __init__(self, server: Server, fleet: Fleet) -> None:
        options = Options(seed="fleet", lease_ms=LEASE_MS, slots=fleet.slots)
        super().__init__(server, options, [])
        self.fleet = fleet
        self.loop.turns_left = TURNS
        self.network = Wide(self.loop, server, options.random("network"))
        self.steady = Steady(fleet.rollout_s, options.random("work"))
        self.closed: Counter[str] = Counter()
        self.submitted: set[str] = set()
        self.readings: list[Reading] = []
        self.submitting = True
        self.full_s = 0.0

    async def _history(self) -> None:
        fleet = self.fleet
        self.start("api-0")
        for stage, seconds in ((Stage.INIT, INIT_S), (Stage.EVAL, EVAL_S)):
            for number in range(fleet.processes(seconds)):
                self.start(f"worker-{stage}-{number}")
        for number in range(fleet.nodes):
            self.start(f"worker-{Stage.RUN}-{number}")
        for number in range(TRAINERS):
            self.start(f"trainer-{number}")
        while not self.readings and self.loop.time() < 10 * fleet.rollout_s:
            await asyncio.sleep(1)
            if self._in_flight() >= 0.95 * fleet.nodes * fleet.slots:
                self.full_s = self.loop.time()
                await asyncio.sleep(fleet.rollout_s / 2)
                self.readings.append(self._reading())
        await asyncio.sleep(fleet.for_s / 2)
        for number in range(fleet.lost):
            self.kill(f"worker-{Stage.RUN}-{number}")
        await asyncio.sleep(fleet.for_s / 2)
        self.readings.append(self._reading())
        self.submitting = False
        if not await self._within(10 * fleet.rollout_s, lambda: self.submitted <= set(self.closed)):
            self.finding("groups did not close", f"{len(self.submitted - set(self.closed))} of {len(self.submitted)}")
        self._over = True

    def _in_flight(self) -> int:
        """Jobs that workers of RUN hold."""
        return sum(len(worker.slots.held) for process, worker in self.workers.items() if "-run-" in process.name)

    def _reading(self) -> Reading:
        told = self.network.server.call(("INFO", "stats")).decode()
        counts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        moved = int(counts["total_net_input_bytes"]) + int(counts["total_net_output_bytes"])
        stat = Path(f"/proc/{self.network.server.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        return Reading(self.loop.time(), self.steady.ended, self.network.calls, cpu_s, moved)

    async def _worker(self, process: Process, rest: str) -> None:
        name, _, number = rest.partition("-")
        stage = Stage(name)
        settings = WorkerSettings(
            stage=stage, redis=self.settings, slots=self.fleet.slots, node=f"n{number}", name=str(process),
            sandbox="none", lease_ms=LEASE_MS,
        )  # fmt: skip
        worker = self.workers[process] = Worker(settings, Registry([self.steady]), connect(settings.redis))
        await worker.run(stage_of(stage, worker))

    async def _trainer(self, process: Process, rest: str) -> None:
        run, client = f"r{rest}", AsyncClient(self.settings.url, tenant=TENANT, namespace=NAMESPACE, patience_s=600.0)
        reading: asyncio.Task[None] | None = None
        for number in itertools.count():
            request = batch(run, number, self.fleet.rollout_s)
            self.submitted |= {f"{run}/{each.group_id}" for each in request.groups}
            await submitted(client, request)
            reading = reading or asyncio.create_task(self._read(client, run))
            while not self._wanted():
                await asyncio.sleep(0.1)

    def _wanted(self) -> bool:
        """Whether trainers have too little submitted."""
        ahead = N * (len(self.submitted) - len(self.closed))
        return self.submitting and ahead < AHEAD * self.fleet.nodes * self.fleet.slots

    async def _read(self, client: AsyncClient, run: str) -> None:
        async for closed in client.results(run):
            self.closed[f"{run}/{closed.record.group_id}"] += 1
            if closed.record.verdict is not Verdict.ACCEPTED:
                self.finding("a group was not accepted", f"{closed.record.group_id}: {closed.record.verdict}")
            await client.ack(run, [closed.cursor])


def batch(run: str, number: int, rollout_s: float) -> BatchRequest:
    limits = Limits(run_ms=int(4_000 * rollout_s), init_ms=600_000, eval_ms=600_000, total_ms=86_400_000)
    groups = [
        GroupRequest(task=Task(task_id="x", data_source=SOURCE), n=N, group_id=f"b{number}-{place}")
        for place in range(GROUPS)
    ]
    return BatchRequest(run_id=run, batch_id=f"b{number}", groups=groups, limits=limits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--rollout-s", type=float, default=60.0)
    parser.add_argument("--for-s", type=float, default=60.0)
    parser.add_argument("--lost", type=int, default=0, help="nodes that die halfway")
    given = parser.parse_args()
    fleet = Fleet(nodes=given.nodes, slots=given.slots, rollout_s=given.rollout_s, for_s=given.for_s, lost=given.lost)
    began, server = time.monotonic(), Server(ordered=False)
    try:
        with no_collection():
            played = FleetWorld(server, fleet)
            findings = [str(each) for each in played.play()]
        memory = dict(
            line.split(":", 1) for line in server.call(("INFO", "memory")).decode().splitlines() if ":" in line
        )
    finally:
        server.close()
    findings += [f"{name} came {count} times" for name, count in played.closed.items() if count > 1]
    for each in findings[:20]:
        print(each)
    if len(played.readings) < 2:
        return 1
    done = played.readings[1].since(played.readings[0])
    size = f"{fleet.nodes} nodes of {fleet.slots} slots, rollouts of {fleet.rollout_s:.0f} s, {fleet.lost} nodes lost"
    print(
        f"{size}; full after {played.full_s:.0f} s\n"
        f"a second: {done.ended / done.at_s:.0f} jobs, {done.calls / done.at_s:.0f} commands, "
        f"{done.cpu_s / done.at_s:.3f} s of the server's CPU, {done.bytes / done.at_s / 1e6:.2f} MB\n"
        f"a job: {done.calls / done.ended:.1f} commands, {1e6 * done.cpu_s / done.ended:.0f} us of the server's CPU, "
        f"{done.bytes / done.ended:.0f} bytes\n"
        f"{int(memory['used_memory']) / 2**20:.0f} MiB, {played.network.links} connections; "
        f"{len(played.closed)} groups closed; took {time.monotonic() - began:.0f} s"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
