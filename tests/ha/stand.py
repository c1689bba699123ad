"""A chain under writers that keep what was acknowledged to them."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from prorl_mq.clock import monotonic
from prorl_mq.errors import RedisUnavailable
from prorl_mq.process.chain import Chain
from prorl_mq.process.children import Say
from prorl_mq.schema.ids import GroupRef
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import replicas
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store
from tests.conftest import binaries
from tests.support.queue import RUN, Queue

NAMESPACE = "ha"
WITHIN_S = 30.0


class Writers:
    """A store, and what writers were told who use it."""

    def __init__(self, settings: RedisSettings, queue: Queue) -> None:
        self.settings = settings
        self.queue = queue
        self.acknowledged: set[GroupRef] = set()
        self.slowest_s = 0.0  # the longest time without an acknowledgement
        self._last = monotonic()
        self._numbers = itertools.count()  # of writers

    @property
    def store(self) -> Store:
        return self.queue.store

    @contextlib.asynccontextmanager
    async def writing(self, writers: int = 4) -> AsyncIterator[None]:
        """Submits groups, one after the other in each of some tasks, until the context ends."""
        tasks = [asyncio.create_task(self._write()) for _ in range(writers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        async for ref in submissions(self.queue, next(self._numbers)):
            self.acknowledged.add(ref)
            self.slowest_s = max(self.slowest_s, monotonic() - self._last)
            self._last = monotonic()

    async def more(self, count: int) -> None:
        """So many are acknowledged from now on."""
        goal = len(self.acknowledged) + count
        await until(lambda: _now(len(self.acknowledged) >= goal))

    async def more_alone(self, count: int) -> None:
        """So many submissions, one after the other."""
        for place in range(count):
            await self.queue.submit(f"alone-{place}", batch=f"alone-{place}", n=1)

    async def whole(self, within_s: float = WITHIN_S) -> None:
        """The chain is as replicated mode wants it. Raises `TimeoutError` with what it lacks."""
        lacks = ["nothing was seen"]

        async def seen() -> bool:
            try:
                lacks[:] = replicas.faults(*await replicas.look_well(self.store, self.settings))
            except (RedisUnavailable, RedisError, OSError) as error:
                lacks[:] = [str(error)]
            return not lacks

        try:
            await until(seen, within_s)
        except TimeoutError as error:
            raise TimeoutError(f"the chain is not whole after {within_s:.0f} s: {'; '.join(lacks)}") from error

    async def replicated(self) -> None:
        await self.whole()
        await replicas.switch(self.store, 1)

    async def repeated(self) -> set[str]:
        """What a repeat of every acknowledged submission is answered."""
        said = set()
        for ref in self.acknowledged:
            name = ref.rpartition(":")[2]
            batch, group = self.queue.new(name, batch=name.replace("g-", "b-"), n=1)
            said.update(await self.store.submit(batch, [group]))
        return said

    async def lost(self) -> set[GroupRef]:
        """What was acknowledged and is not there."""
        waiting = await self.queue.command("ZRANGE", self.queue.keys.backlog(RUN), 0, -1)
        return self.acknowledged - {GroupRef(name.decode()) for name in waiting}


class Stand(Writers):
    """A chain, and writers that follow its primary."""

    def __init__(self, chain: Chain, settings: RedisSettings, queue: Queue) -> None:
        super().__init__(settings, queue)
        self.chain = chain

    @property
    def pid(self) -> int:
        """The primary's process."""
        return self.chain.pids[f"redis-{self.chain.order[0]}"]

    def signal_primary(self, number: signal.Signals) -> int:
        pid = self.pid
        os.kill(pid, number)
        return pid

    async def cut_off_replica(self) -> None:
        """The replica gets no more of what its primary writes, as behind a cut link; the primary, as before it notices,
        takes writes without one.
        """
        await self.chain.nodes[self.chain.order[0]].ask("CONFIG", "SET", "min-replicas-to-write", "0")
        await self.chain.nodes[self.chain.order[1]].ask("REPLICAOF", "127.0.0.1", "1")


async def submissions(queue: Queue, writer: int) -> AsyncIterator[GroupRef]:
    """Groups of one writer, submitted one after the other."""
    for place in itertools.count():
        yield await queue.submit(f"g-{writer}-{place}", batch=f"b-{writer}-{place}", n=1)


def queue_of(settings: RedisSettings) -> Queue:
    queue = Queue(connect(settings, connections=16), Keys(settings.namespace))
    queue.store.outage_ms = 60_000
    return queue


@contextlib.asynccontextmanager
async def stand(
    *,
    binary: str | None = None,
    kept: bool = True,
    prepared: Callable[[Chain, Path], None] = lambda *_: None,
    say: Say = lambda _: None,
    logs: Path | None = None,
) -> AsyncIterator[Stand]:
    """`kept`: what ends is started again, and the chain repaired. `prepared` gets the chain before it starts, and a
    directory. `logs`: a directory in which the servers' files stay.
    """
    directory = logs or Path(tempfile.mkdtemp(prefix="ha"))
    program = binary or next(iter(binaries().values()))
    chain = Chain(directory, program, namespace=NAMESPACE, say=say, down_after_ms=500)
    prepared(chain, directory)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if kept:
                await stack.enter_async_context(chain.running())
            else:
                stack.callback(chain.stop)
                await chain.start()
            here = Stand(chain, chain.settings, queue_of(chain.settings))
            try:
                yield here
            finally:
                await here.store.redis.aclose()
    finally:
        if logs is None:
            shutil.rmtree(directory, ignore_errors=True)


async def until(seen: Callable[[], Awaitable[bool]], within_s: float = WITHIN_S) -> None:
    async with asyncio.timeout(within_s):
        while not await seen():
            await asyncio.sleep(0.02)


async def _now(value: bool) -> bool:
    return value
