"""A node with its keeper and a worker beside it, for the tests of both."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from sandbox.host.process import start_time
from sandbox.isolators.kinds import make_provider
from sandbox.keeper import place
from sandbox.keeper.client import KeptProvider
from sandbox.keeper.pool_shape import Shape
from sandbox.keeper.server import Keeper
from sandbox.keeper.wire import Counts, Given, Take, ask, connected, counts
from sandbox.lifetime import label
from sandbox.lifetime.owner import Owner, OwnerKind, parse
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from tests.sandbox.conftest import NODE, TOOLS_DIR

WITHIN_S = 30.0
PLAIN = SandboxSpec(owner="a job")


def _provider(kind: str, state_dir: Path) -> SandboxProvider:
    return make_provider(kind, node=NODE, state_dir=state_dir, tools_dir=TOOLS_DIR)


class Node:
    """One service's keeper on a node, and a worker beside it."""

    def __init__(self, kind: str, state_dir: Path, service: str = "prorl") -> None:
        self.keeper = Keeper(_provider(kind, state_dir), state_dir, service)
        self.worker = KeptProvider(_provider(kind, state_dir), state_dir, service)
        self.place = place.place(state_dir, service, NODE)
        self.state_dir = state_dir

    async def until(self, true: Callable[[Counts], bool]) -> Counts:
        """Asks the keeper until something is so: nothing tells when it has tended its pool."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                with contextlib.suppress(OSError):
                    said = await counts(self.place)
                    if true(said):
                        return said
                await asyncio.sleep(0.01)

    async def warmed(self, number: int = 1) -> None:
        """Asks for sandboxes that are not there, so that the pool starts as many, and makes room for no more."""
        self.keeper.pool.make_room(number)
        take = Take(kind=self.worker.kind, shape=Shape(), owner=Owner(OwnerKind.JOB, "prorl", "nobody").text)
        await asyncio.gather(*(self.ask(take) for _ in range(number)))
        await self.until(lambda said: said.warm == number)

    async def ask(self, take: Take) -> None:
        """Takes nothing: without an acknowledgement it goes back."""
        async with connected(self.place) as connection:
            await ask(connection, take, Given)

    def owners(self) -> list[str]:
        parsed = [parse(made.owner) for _, made in label.labelled(self.state_dir)]
        return sorted(owner.kind for owner in parsed if owner)


async def works(sandbox: Sandbox) -> bool:
    return (await sandbox.bash("echo $((6*7))")).output == "42\n"


async def until_stopped(pid: int) -> None:
    """On a busy machine one thread of a process may serve on, until the one that got the signal has run."""
    async with asyncio.timeout(WITHIN_S):
        while _states(pid) != {"T"}:
            await asyncio.sleep(0.01)


def _states(pid: int) -> set[str]:
    """Of its threads, as /proc has them."""
    found = Path(f"/proc/{pid}/task").glob("*/stat")
    return {each.read_text().rpartition(")")[2].split()[0] for each in found}


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while any(start_time(pid) for pid in pids):
            await asyncio.sleep(0.01)
