"""One history: its processes, its phases (faults, healing, drain), and what must hold at its end."""

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.duties.running import running as duties_running
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.simulation import seams
from tests.simulation.client import Client
from tests.simulation.ending import check_end
from tests.simulation.faults import Fault, Nemesis, plan
from tests.simulation.forks import Forks
from tests.simulation.loop import PROCESS, Loop, Process, Stuck
from tests.simulation.network import Network
from tests.simulation.options import Finding, Options
from tests.simulation.oracle import Oracle
from tests.simulation.server import Server
from tests.simulation.work import NAMESPACE, OTHER, RUN, TENANT, Family, PartOfFamily, Trainer
from workers.process.worker import Worker
from workers.settings import WorkerSettings
from workers.stages.eval import EvalStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.stage import StageRunner

HEALED_S: Final = 90.0  # within which everything must close once faults are over: an answer may be missed for 60 s
DRAIN_S: Final = 15.0  # beyond the grace time, within which a drained worker must have ended
NODE: Final = "n0"


class World:
    """Everything of one history."""

    def __init__(self, server: Server, options: Options, faults: list[Fault] | None = None) -> None:
        self.options = options
        self.loop = Loop(options.random("order"), permute=options.permute, shuffle_all=options.shuffle_all)
        self.network = Network(self.loop, server, options.random("network"), options.random("luck"))
        self.keys = Keys(NAMESPACE)
        self.settings = RedisSettings(url="redis://simulation", namespace=NAMESPACE, outage_ms=120_000)
        self.faults = plan(options) if faults is None else faults
        self.family = Family(options, options.random("work"))
        self.trainer = Trainer(options)
        self.forks = Forks(self)
        self.oracle = Oracle(self.keys, self.network.counts)
        self.running: dict[str, Process] = {}
        self.workers: dict[Process, Worker] = {}
        self.findings: list[Finding] = []
        self.foreign = Client(self.network, answer_s=10.0, connections=1)  # another tenant's
        self._incarnations: dict[str, int] = {}
        self._canceller: AsyncClient | None = None
        self._over = False
        self.network.observers.append(self.oracle)

    def finding(self, what: str, detail: str = "") -> None:
        self.findings.append(Finding(what, detail))

    def play(self) -> list[Finding]:
        """Runs the history; what went wrong."""
        self.network.server.begin()
        with seams.replaced(self):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._history())
            except Stuck as stuck:
                self.finding("the history is stuck", str(stuck))
            finally:
                self._over = True
                self.loop.bury()
                asyncio.set_event_loop(None)
                self.loop.close()
        steps = [Finding("step oracle", each) for each in self.oracle.violations]
        return [*steps, *self.findings, *(Finding("unhandled error", each) for each in self.loop.failures)]

    # ---- phases

    async def _history(self) -> None:
        for number in range(self.options.apis):
            self.start(f"api-{number}")
        for stage in Stage:
            for number in range(self.options.workers):
                self.start(f"worker-{stage}-{number}")
        self.start("trainer")
        await Nemesis(self, self.faults).run()
        if not await self._within(HEALED_S + self.options.work_s, lambda: self.trainer.done):
            self.finding("the trainer's batches did not close", self._state())
            return
        if self.trainer.tails_lost and self.options.reads_again:
            await self._read_again()
        await self._drain_all()
        if self.options.wait_for_ttl:
            await asyncio.sleep(8 * self.options.lease_ms / 1000)
        await check_end(self)
        self._over = True

    async def _read_again(self) -> None:
        """What came back with a lost tail after the trainer had ended is read by its next process."""
        reading = asyncio.ensure_future(self.trainer.read_again(self.client()))
        server, keys = self.network.server, self.keys

        def over() -> bool:
            server.set_time(self.network.wall_us, self.loop.now_us)
            rows = server.call(("XRANGE", keys.results(RunRef(RUN)), "-", "+"))
            unread = any(fields[0] != b"a" for _, fields in rows)
            untaken = server.call(("XLEN", keys.intake(RunRef(RUN))))
            open_keys = (keys.open_groups(RunRef(RUN)), keys.dapo, keys.unacked)
            return not unread and not untaken and not server.call(("EXISTS", *open_keys))

        if not await self._within(HEALED_S + self.options.work_s, over):
            self.finding("what came back with a lost tail did not close", self._state())
        reading.cancel()

    async def _drain_all(self) -> None:
        for name in [name for name in self.running if name.startswith("worker")]:
            self.drain(name, again=False)
        within_s = self.options.grace_ms / 1000 + DRAIN_S
        if not await self._within(within_s, lambda: not any(name.startswith("worker") for name in self.running)):
            left = {
                name: [str(ref) for ref, _ in self.workers[process].slots.held]
                for name, process in self.running.items()
                if process in self.workers
            }
            self.finding("a drain did not end", str(left))

    async def _within(self, seconds: float, true: Callable[[], bool]) -> bool:
        give_up = self.loop.time() + seconds
        while not true():
            if self.loop.time() > give_up or any(each.what == "a process failed" for each in self.findings):
                return False
            await asyncio.sleep(0.01)
        return True

    def heal(self) -> None:
        """No fault any more: everything lives, runs and is reachable."""
        weather = self.network.weather
        self.network.weather = type(weather)()
        self.family.calm = True
        for process in list(self.running.values()):
            if process.frozen:
                process.thaw(self.loop)
        for process, worker in list(self.workers.items()):  # the install is rolled out
            if OTHER not in worker.registry.schemas and self.running.get(process.name) is process:
                self.drain(process.name)
        for name in [name for name in self._incarnations if name not in self.running and name != "trainer"]:
            self.start(name)

    def restart_server(self, lost_s: float) -> None:
        self.network.restart(lost_s)
        self.family.redis_has_lost |= lost_s > 0
        if lost_s:
            self.oracle.rebuilt(self.network.log)
            self.trainer.tail_lost()
        self.oracle.model.server = self.network.server.name

    # ---- processes

    def pick(self, kind: str, which: int) -> str | None:
        """A running process of a kind."""
        names = [name for name, process in self.running.items() if name.startswith(kind) and not process.frozen]
        return names[which % len(names)] if names else None

    def start(self, name: str) -> None:
        if name in self.running:
            return
        number = self._incarnations[name] = self._incarnations.get(name, -1) + 1
        process = Process(name, number)
        kind, _, rest = name.partition("-")
        main = {"api": self._api, "worker": self._worker, "trainer": self._trainer}[kind]
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        self.network.watch(process)
        self.running[name] = process
        self.loop.create_task(self._live(process, main(process, rest)), context=context)

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def drain(self, name: str, *, again: bool = True) -> None:
        """As SIGTERM does; the worker starts again when it has ended."""
        process = self.running.get(name)
        if process is None:
            return
        process.restarts, process.drained = again, True
        worker = self.workers.get(process)
        if worker is not None:
            worker.drain()

    async def _live(self, process: Process, main: Awaitable[None]) -> None:
        try:
            await main
        except Exception as error:
            self.finding("a process failed", f"{process}: {error!r}")
            process.restarts = False
        if self.running.get(process.name) is process:
            del self.running[process.name]
        if process in self.workers and not process.drained:
            self.finding("a worker ended by itself", str(process))
        if process.restarts and not self._over:
            self.start(process.name)

    async def _api(self, process: Process, rest: str) -> None:
        async with duties_running(
            self.settings, name=str(process), lease_ms=self.options.lease_ms, control=seams.NoControl()
        ):
            await self.loop.create_future()

    async def _worker(self, process: Process, rest: str) -> None:
        stage = Stage(rest.partition("-")[0])
        options = self.options
        settings = WorkerSettings(
            stage=stage, redis=self.settings, slots=options.slots, node=NODE, name=str(process), sandbox="none",
            lease_ms=options.lease_ms, grace_ms=options.grace_ms,
        )  # fmt: skip
        redis = connect(settings.redis)
        worker = self.workers[process] = Worker(settings, Registry([self._installed(process)]), redis)
        if process.drained:
            worker.drain()
        try:
            await worker.run(stage_of(stage, worker))
        finally:
            with contextlib.suppress(Exception):
                await redis.aclose()

    def _installed(self, process: Process) -> Family | PartOfFamily:
        """In histories of the kind `families` half of the starts lack one; none does that comes after the faults."""
        lacks = "families" in self.options.kinds and not self.family.calm
        lacks = lacks and self.options.random(f"families of {process}").random() < 0.5
        return PartOfFamily(self.family) if lacks else self.family

    async def _trainer(self, process: Process, rest: str) -> None:
        await self.trainer.run(self.client())

    def client(self) -> AsyncClient:
        return AsyncClient(self.settings.url, tenant=TENANT, namespace=NAMESPACE, patience_s=600.0)

    def canceller(self) -> AsyncClient:
        """A second client of the trainer."""
        if self._canceller is None:
            self._canceller = self.client()
        return self._canceller

    def _state(self) -> str:
        """Where open work stands, for a finding."""
        call = self.network.server.call
        self.network.server.set_time(self.network.wall_us, self.loop.now_us)
        lines = [f"running {sorted(map(str, self.running.values()))}, closed {len(self.trainer.closed)}"]
        living = [(process, worker) for process, worker in self.workers.items() if not process.dead]
        lines += [f"held by {process}: {sorted(worker.slots.held)}" for process, worker in living]
        for key in sorted(call(("KEYS", "*job:*"))):
            row = call(("HMGET", key, "state", "stage", "owner", "entry", "token"))
            if row[0] != b"done":
                lines.append(f"{key.decode()} {[(each or b'').decode() for each in row]}")
        return "\n".join(lines)


def stage_of(stage: Stage, worker: Worker) -> StageRunner:
    if stage is Stage.INIT:
        return InitStage(worker.registry, None, worker.store, NODE)
    if stage is Stage.RUN:
        return RunStage(worker.registry, None, worker.store, _no_policy, NODE, worker.turn_logs.send)
    return EvalStage(worker.registry, None, worker.store)


def _no_policy(*_: Any) -> Any:
    raise LookupError("the simulated task family asks no policy")
