"""The service of the drills, and a tunnel that hangs between a worker and its Redis."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from prorl_mq.process.ports import free_port
from prorl_mq.schema.messages import Limits, Stage
from prorl_mq.service import submit
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.chaos.test_faults import one_batch, until_running
from tests.metrics.test_prometheus import Prometheus
from tests.support.service import until
from tests.support.world import World


class Tunnel:
    """Between a worker and Redis: once it is `silent` it passes nothing on, and no connection ends. While it is not
    `flowing`, what comes waits in it.
    """

    def __init__(self, server: Path, path: Path) -> None:
        self.silent = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._server = server
        self._path = path
        self._tasks = set[asyncio.Task[None]]()

    async def start(self) -> None:
        self._serving = await asyncio.start_unix_server(self._connected, self._path)

    async def aclose(self) -> None:
        self._serving.close()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_unix_connection(self._server)
        self._tasks |= {asyncio.create_task(self._pass(reader, downstream)),
                        asyncio.create_task(self._pass(upstream, writer))}  # fmt: skip

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self.flowing.wait()
            if not self.silent:
                writer.write(data)
        writer.close()


class Service:
    """The service of the drills, and what its faults need to know."""

    prom: Prometheus

    def __init__(self, world: World, store: Store) -> None:
        self.world = world
        self.store = store
        self.port = free_port()
        self.tunnel = Tunnel(world.directory / "redis.sock", world.directory / "tunnel.sock")
        self.stack = AsyncExitStack()  # what faults have opened
        self._batches = 0

    def start_api(self) -> None:
        argv = [sys.executable, "-m", "api", "--port", str(self.port)]
        self.world.apis["api-tcp"] = self.world.start("api-tcp", argv)

    async def submit(self, groups: int, n: int = 1, **payload: object) -> None:
        """No job has a second try, nor survives a worker where it has a `box`."""
        self._batches += 1
        limits = Limits(backoff_ms=20, max_attempts=1, max_deaths=1 if payload.get("box") else 3)
        await submit.accept(self.store, "default", one_batch(f"d{self._batches}", groups, n, limits, **payload))

    async def held(self, jobs: int) -> None:
        """Returns when so many are under a lease."""

        async def all_held() -> bool:
            return int(await self.store.read("ZCARD", self.store.keys.leases)) >= jobs

        await until(all_held, within_s=60)

    async def scraped(self, query: str) -> None:
        """Returns when Prometheus has an answer: what a process counts after that is a rise."""
        await self.prom.until(lambda: self._answered(query))

    async def seen(self, worker: str) -> None:
        await self.scraped(f'prorl_worker_free_slots{{worker=~".*-{self.world.workers[worker].pid}"}}')

    async def _answered(self, query: str) -> bool:
        return bool((await self.prom.ask("query", query=query))["result"])

    async def three_of_run(self) -> None:
        for number in {1, 2} - {int(name.rpartition("-")[2]) for name in self.workers(Stage.RUN)}:
            self.world.start_worker(Stage.RUN, number)

        async def all_live() -> bool:
            return len([each for each in await living(self.store) if each.stage is Stage.RUN]) == 3

        await until(all_live, within_s=60)

    def workers(self, stage: Stage) -> list[str]:
        return [name for name in self.world.workers if name.startswith(f"{stage}-")]

    async def none_alive(self, stage: Stage) -> None:
        for name in self.workers(stage):
            self.world.kill(name)

    def restart(self, stage: Stage, *more: str) -> None:
        for name in self.workers(stage):
            self.world.extra[name] = list(more)
            self.world.restart(name)

    def replace(self, stage: Stage, number: int, *more: str) -> None:
        """One worker in place of all of the stage."""
        for name in self.workers(stage):
            self.world.kill(name)
            del self.world.workers[name]
        self.world.start_worker(stage, number, *more)

    async def stalled(self, *more: str) -> None:
        """The link of RUN's only worker stalls for longer than a lease, while its 48 jobs end."""
        self.tunnel.silent = False
        await self.tunnel.start()
        self.replace(Stage.RUN, 7, "--slots", "48", "--redis", f"unix://{self.world.directory}/tunnel.sock", *more)
        await self.submit(48, run_ms=4_000)
        await until_running(self.store, 48)
        self.tunnel.flowing.clear()
        await asyncio.sleep(8)
        self.tunnel.flowing.set()
