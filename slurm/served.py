"""A server that this task runs: on a free port, published when it is ready, restarted when it ends."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import httpx

from prorl_mq.errors import ProrlError
from prorl_mq.process.children import Child, Guard, Program
from prorl_mq.process.ports import free_port
from slurm.crew import CRASHES, FIRST_WAIT_S, Stopping, say

LOOK_S = 0.2
ANSWER_S = 5.0


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
                if not stopping.asked.is_set():
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
        up = False
        try:
            await child.start()
            starting = asyncio.create_task(answering(child, f"{url}{self._ready}", within_s=self._start_s))
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                return False
            await starting
            await announce(url)
            up = True
            say(f"{child.program.name} serves at {url}")
            ended = asyncio.create_task(child.wait())
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                ended.cancel()
                await withdraw(url)
            else:
                say(child.obituary())
                with contextlib.suppress(ProrlError):  # of an unreachable Redis: probes find it dead, too
                    await withdraw(url)
        except NotReady as error:
            say(str(error))
        finally:
            asked.cancel()
            await child.stop(self._grace_s)
        return up
