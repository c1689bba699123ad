"""A keeper knows at once that a worker's process has ended, and takes nothing else for its end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sandbox.fake import FakeProvider
from sandbox.keeper import place
from sandbox.keeper.server import Keeper
from sandbox.keeper.watching import WorkerStart
from sandbox.keeper.wire import ACKNOWLEDGED, Counts, Watched, WatchWorker, ask, connected, counts
from tests.sandbox.keeper_node import until_stopped

pytestmark = pytest.mark.anyio
NODE, SERVICE, WITHIN_S = "n1", "prorl", 30.0
WORKER = """
import asyncio, sys
from pathlib import Path
from workers.node.watched import stay_watched

async def main():
    await asyncio.gather(*(stay_watched(Path(sys.argv[1]), name, 7) for name in sys.argv[2:]))

asyncio.run(main())
"""
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return place.place(tmp_path, SERVICE, NODE)


@contextlib.asynccontextmanager
async def kept(tmp_path: Path) -> AsyncIterator[Keeper]:
    keeper = Keeper(FakeProvider(lambda _: "", node=NODE), tmp_path, SERVICE)
    async with keeper.listening():
        yield keeper


@pytest.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    async with kept(tmp_path) as each:
        yield each


@pytest.fixture
def start(where: Path) -> Iterator[Start]:
    """Starts workers that do nothing but be watched."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*names: str) -> "subprocess.Popen[bytes]":
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        started.append(subprocess.Popen([sys.executable, "-c", WORKER, str(where), *names], env=env))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


async def watches(where: Path, number: int) -> Counts:
    async with asyncio.timeout(WITHIN_S):
        while True:
            with contextlib.suppress(OSError):
                if (said := await counts(where)).watched == number:
                    return said
            await asyncio.sleep(0.01)


async def dead(keeper: Keeper) -> WorkerStart:
    async with asyncio.timeout(WITHIN_S):
        return await keeper.watching.dead.get()


async def test_a_killed_worker_is_known_to_be_dead_before_anybody_waits_for_it(
    keeper: Keeper, where: Path, start: Start
) -> None:
    first, second = start("a"), start("b")
    await watches(where, 2)
    first.kill()  # and stays a zombie
    assert await dead(keeper) == WorkerStart("a", 7)
    assert (await counts(where)).watched == 1
    second.kill()
    assert await dead(keeper) == WorkerStart("b", 7)
    assert keeper.watching.dead.empty()


async def test_a_worker_that_is_stopped_or_has_closed_its_connections_is_not_dead(
    keeper: Keeper, where: Path, start: Start
) -> None:
    stopped, other = start("stopped"), start("other")
    await watches(where, 2)
    stopped.send_signal(signal.SIGSTOP)
    await until_stopped(stopped.pid)
    async with connected(where) as connection:  # of this process, which lives on
        assert (await ask(connection, WatchWorker(name="closed", started_ms=8), Watched)).seen
        connection.send(ACKNOWLEDGED)
        await watches(where, 3)
    other.kill()
    assert await dead(keeper) == WorkerStart("other", 7)
    assert keeper.watching.dead.empty()
    assert (await counts(where)).watched == 2
    stopped.kill()
    assert await dead(keeper) == WorkerStart("stopped", 7)


async def test_a_process_that_has_said_nothing_after_it_was_seen_is_not_watched(keeper: Keeper, where: Path) -> None:
    """Its number may be another process's by then."""
    for more in (b"", b"x"):
        async with connected(where) as connection:
            assert (await ask(connection, WatchWorker(name="gone", started_ms=7), Watched)).seen
            connection.send(more)
    async with connected(where) as connection:
        assert (await ask(connection, WatchWorker(name="here", started_ms=7), Watched)).seen
        connection.send(ACKNOWLEDGED)
        await watches(where, 1)
    assert keeper.watching.dead.empty()


async def test_a_worker_is_watched_once_however_often_it_asks(keeper: Keeper, where: Path, start: Start) -> None:
    process = start("a", "a", "b")
    await watches(where, 2)
    process.kill()
    assert {await dead(keeper), await dead(keeper)} == {WorkerStart("a", 7), WorkerStart("b", 7)}
    assert keeper.watching.dead.empty()


async def test_the_next_keeper_watches_the_workers_that_live(tmp_path: Path, where: Path, start: Start) -> None:
    process = start("a")
    async with kept(tmp_path):
        await watches(where, 1)
    async with kept(tmp_path) as second:
        await watches(where, 1)
        process.kill()
        assert await dead(second) == WorkerStart("a", 7)
