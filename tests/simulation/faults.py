"""The faults of one history: a plan drawn from its seed, carried out at its times, taken back at its end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from prorl_mq.errors import ServiceError
from prorl_mq.store.server.faults import FAULTS
from tests.simulation.options import EVENT_KINDS, Options
from tests.simulation.work import RUN_ID

if TYPE_CHECKING:
    from tests.simulation.world import World

HEALED: Final = (
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
)
HARD: Final = (
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOREPLICAS Not enough good replicas to write.",
)


class Fault(NamedTuple):
    """One event: what, when, to which of its kind, for how long."""

    at_s: float
    kind: str
    which: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at_s:8.4f} s  {self.kind} {self.which} for {self.seconds:.3f} s"


def plan(options: Options) -> list[Fault]:
    """The events of a seed in order of time."""
    faults, lease_s = options.random("faults"), options.lease_ms / 1000
    busy_s = min(options.faults_s, 0.05 + 0.4 * options.work_s)  # later there is little left to disturb
    made = []
    for kind in sorted(options.kinds & {*EVENT_KINDS}):
        random = options.random(kind) if kind.startswith(("pause", "fork")) else faults
        for _ in range(options.cancels if kind.startswith("cancel") else random.choice((1, 3, 6))):
            at_s = random.random() * (options.faults_s if random.random() < 0.2 else busy_s)
            seconds = random.choice((0.2, 1.0, 2.5)) * lease_s * random.random()
            if kind == "freeze_api":
                seconds += random.choice((0.0, 5.0))
            made.append(Fault(at_s, kind, random.randrange(1000), seconds))
    return sorted(made)


class Nemesis:
    """Carries a plan out."""

    def __init__(self, world: "World", faults: list[Fault]) -> None:
        self._world = world
        self.faults = faults
        self._random: Random = world.options.random("nemesis")
        self._tasks: list[asyncio.Task[None]] = []
        self._cancels: list[asyncio.Task[None]] = []

    def set_weather(self) -> None:
        """What lasts as long as the faults do."""
        kinds, weather = self._world.options.kinds, self._world.network.weather
        weather.lost_request = 0.02 if "lost_request" in kinds else 0.0
        weather.lost_reply = 0.02 if "lost_reply" in kinds else 0.0
        weather.late = 0.01 if "late" in kinds else 0.0
        weather.again = 0.05 if "again" in kinds else 0.0
        weather.hold_reads = 0.03 if "hold_reads" in kinds else 0.0
        weather.silent = 0.002 if "silent" in kinds else 0.0

    async def run(self) -> None:
        """Returns when the time of faults is over and everything is healed."""
        loop = asyncio.get_running_loop()
        self.set_weather()
        for fault in self.faults:
            if not await self._working_until(fault.at_s):
                break
            self._world.network.counts[fault.kind] += 1
            tasks = self._cancels if fault.kind.startswith(("cancel", "pause", "fork")) else self._tasks
            tasks.append(loop.create_task(self._do(fault)))
        await self._working_until(self._world.options.faults_s)
        for task in self._tasks:
            await task
        self._world.heal()
        for task in self._cancels:
            await task

    async def _working_until(self, at_s: float) -> bool:
        """Waits, though not for long once the trainer has all that it wanted: then there is nothing left to disturb."""
        loop, spare = asyncio.get_running_loop(), self._world.options.lease_ms / 1000
        while loop.time() < at_s and spare > 0:
            step = min(at_s - loop.time(), 0.05)
            spare -= step if self._world.trainer.done else 0.0
            await asyncio.sleep(step)
        return spare > 0

    def _do(self, fault: Fault) -> Awaitable[None]:
        kind, _, what = fault.kind.partition("_")
        actions: dict[str, Callable[[Fault, str], Awaitable[None]]] = {
            "kill": self._kill, "freeze": self._freeze, "restart": self._restart, "lost": self._restart,
            "role": self._role, "hard": self._role, "refused": self._refuse, "drain": self._drain,
            "cancel": self._cancel, "clock": self._step_clock, "foreign": self._foreign_key,
            "pause": self._pause, "fork": self._fork,
        }  # fmt: skip
        return actions[kind](fault, what)

    async def _kill(self, fault: Fault, what: str) -> None:
        name = self._world.pick(what, fault.which)
        if name is not None:
            self._world.kill(name)
            await asyncio.sleep(fault.seconds)
            self._world.start(name)

    async def _freeze(self, fault: Fault, what: str) -> None:
        name = self._world.pick(what, fault.which)
        if name is not None:
            process = self._world.running[name]
            process.frozen = True
            await asyncio.sleep(fault.seconds)
            process.thaw(self._world.loop)

    async def _drain(self, fault: Fault, what: str) -> None:
        name = self._world.pick("worker", fault.which)
        if name is not None:
            self._world.drain(name)
            await asyncio.sleep(fault.seconds)

    async def _restart(self, fault: Fault, what: str) -> None:
        """Redis goes and comes back; with a lost tail it has forgotten its last moments."""
        network = self._world.network
        network.weather.refused = True
        network.reset()
        await asyncio.sleep(fault.seconds / 4)
        lost_s = self._random.random() if fault.kind == "lost_tail" else 0.0
        self._world.restart_server(lost_s)
        network.weather.refused = False

    async def _role(self, fault: Fault, what: str) -> None:
        weather = self._world.network.weather
        weather.answer = self._random.choice(HARD if fault.kind == "hard_role" else HEALED)
        await asyncio.sleep(fault.seconds)
        weather.answer = ""

    async def _refuse(self, fault: Fault, what: str) -> None:
        network = self._world.network
        network.weather.refused = True
        network.reset()
        await asyncio.sleep(fault.seconds)
        network.weather.refused = False

    async def _step_clock(self, fault: Fault, what: str) -> None:
        lease_us = self._world.options.lease_ms * 1000
        self._world.network.wall_offset_us += self._random.choice((lease_us, -lease_us, -3_600_000_000))

    async def _foreign_key(self, fault: Fault, what: str) -> None:
        """A second tenant writes keys of the wrong kind where its rights allow it to."""
        prefix, write = self._world.keys.prefix, self._world.foreign.execute_command
        with contextlib.suppress(*FAULTS):
            await write("SADD", f"{prefix}intakes", b"other:\xff", "other:bad", "loose")
            await write("SET", f"{prefix}intake:other:bad", "no stream")
            await write("SET", f"{prefix}results:other:bad", "no stream")

    async def _cancel(self, fault: Fault, what: str) -> None:
        options, random = self._world.options, self._random
        batch = random.randrange(options.batches)
        group = f"{RUN_ID}:b{batch}-{random.randrange(options.groups)}"
        job = f"{group}:{random.randrange(options.n)}"
        names = {"job": job, "group": group, "batch": f"{RUN_ID}:b{batch}", "run": RUN_ID}
        try:
            await self._world.canceller().cancel(what, names[what])
        except ServiceError as error:
            if error.status not in {404, 409}:
                raise

    async def _pause(self, fault: Fault, what: str) -> None:
        """A pause, and mostly its end; else the service resumes by itself a second later."""
        options, random = self._world.options, self._world.options.random(str(fault))
        group = f"{RUN_ID}:b{random.randrange(options.batches)}-{random.randrange(options.groups)}"
        name = {"job": f"{group}:{random.randrange(options.n)}", "run": RUN_ID}[what]
        client = self._world.canceller()
        try:
            await client.pause(what, name, for_s=1.0)
            await asyncio.sleep(fault.seconds)
            if random.random() < 0.7:
                await client.resume(what, name)
        except ServiceError as error:
            if error.status not in {404, 409}:
                raise

    async def _fork(self, fault: Fault, what: str) -> None:
        await self._world.forks.fork(self._world.options.random(str(fault)), fault.seconds)
