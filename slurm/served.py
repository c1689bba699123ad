"""A server that this task runs: on a free port, published when it is ready, restarted when it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from prorl_mq.errors import ProrlError, RedisUnavailable
from prorl_mq.process.children import Child, Guard, Program
from prorl_mq.process.crews.crew import CRASHES, FIRST_WAIT_S, Stopping, say
from prorl_mq.process.ports import free_port
from prorl_mq.store.server.faults import RedisError

LOOK_S = 0.2
ANSWER_S = 5.0
AGAIN_S = 5.0


class NotReady(ProrlError):
    """A server ended, or did not answer in time."""


async def answering(child: Child, url: str, *, within_s: float) -> None:
    """Returns when `url` answers with success. Raises `NotReady`."""
    try:
        async with asyncio.timeout(within_s), httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as http:
            while True:
                if child.ended is not None:
                    raise NotReady(child.obituary())
                try:
                    if (await http.get(url)).is_success:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(LOOK_S)  # nothing tells when another process is ready
    except TimeoutError:
        raise NotReady(f"{url} has not answered within {within_s:g} s") from None


Announce = Callable[[str], Awaitable[None]]  # gets the server's address, each time it has come up


class Served:
    """`program` makes the command line for a port; `ready` is the path that answers when it is up."""

    def __init__(
        self, program: Callable[[int], Program], *, address: str, ready: str, start_s: float, grace_s: float
    ) -> None:
        self._program = program
        self._address = address
        self._ready = ready
        self._start_s = start_s
        self._grace_s = grace_s

    async def run(self, stopping: Stopping, announce: Announce, withdraw: Announce) -> int:
        """Until a signal; the exit code of the task. `withdraw` is awaited before the server is told to end, and where
        it has ended by itself.
        """
        guard = Guard(None)
        crashes = 0
        try:
            while crashes < CRASHES and not stopping.asked.is_set():
                crashes = 0 if await self._once(guard, stopping, announce, withdraw) else crashes + 1
                if crashes < CRASHES and not stopping.asked.is_set():
                    await asyncio.sleep(FIRST_WAIT_S * 2**crashes)
        finally:
            await guard.aclose()
        return stopping.exit_code if stopping.asked.is_set() else 1

    async def _once(self, guard: Guard, stopping: Stopping, announce: Announce, withdraw: Announce) -> bool:
        """One life of the server; whether it ever came up."""
        port = free_port(self._address)
        url = f"http://{self._address}:{port}"
        child = Child(self._program(port), say=say, guard=guard)
        asked = asyncio.create_task(stopping.asked.wait())
        announcing: asyncio.Task[None] | None = None
        ended: asyncio.Task[object] | None = None
        up = False
        try:
            await child.start()
            starting = asyncio.create_task(answering(child, f"{url}{self._ready}", within_s=self._start_s))
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                return False
            await starting
            ended = asyncio.create_task(child.wait())
            announcing = asyncio.create_task(_announced(announce, url))
            await asyncio.wait({announcing, ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done():
                await announcing
                up = True
                say(f"{child.program.name} serves at {url}")
                await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                say(child.obituary())
            await _cancelled(announcing)
            await withdraw(url)
        except (ProrlError, RedisError) as error:  # of withdrawing, too: probes find it dead
            say(f"{child.program.name}: {error}")
        finally:
            for task in (asked, announcing, ended):
                if task is not None:
                    task.cancel()
            await child.stop(self._grace_s)
        return up


async def _cancelled(task: asyncio.Task[None]) -> None:
    """So that nothing is announced after it was withdrawn."""
    task.cancel()
    await asyncio.wait({task})


async def _announced(announce: Announce, url: str) -> None:
    """Until Redis has heard of it: a server that has loaded its model is not given up for that."""
    while True:
        try:
            return await announce(url)
        except RedisUnavailable as error:
            say(f"{url} cannot be announced: {error}; trying again in {AGAIN_S:g} s")
            await asyncio.sleep(AGAIN_S)
