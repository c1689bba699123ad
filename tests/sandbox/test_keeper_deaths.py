"""Keepers that are killed: the next one continues from the disk."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.keeper.wire import counts
from sandbox.lifetime import label
from sandbox.protocol import SandboxProvider
from tests.sandbox.conftest import NODE
from tests.sandbox.keeper_node import PLAIN, Node, until_gone, works

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)]

StartKeeper = Callable[[int], "subprocess.Popen[bytes]"]
KEEPER = """
import asyncio, sys
from pathlib import Path
from sandbox.keeper.server import Keeper
from sandbox.isolators.kinds import make_provider

async def main():
    kind, node, state_dir, service, room = sys.argv[1:]
    keeper = Keeper(make_provider(kind, node=node, state_dir=Path(state_dir)), Path(state_dir), service)
    async with keeper.listening():
        keeper.pool.make_room(int(room))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def keeper_process(kind: str, state_dir: Path, tmp_path: Path) -> Iterator[StartKeeper]:
    """Starts keepers that a test may kill."""
    script = tmp_path / "keeper.py"
    script.write_text(KEEPER)
    started: list[subprocess.Popen[bytes]] = []

    def start(room: int) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, str(script), kind, NODE, str(state_dir), "prorl", str(room)]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_the_next_keeper_adopts_the_pool_of_a_killed_one(
    kind: str, state_dir: Path, provider: SandboxProvider, keeper_process: StartKeeper
) -> None:
    """Members that do not answer are destroyed; jobs' sandboxes are not touched."""
    node = Node(kind, state_dir)
    first = keeper_process(3)
    await node.warmed(3)
    sandbox = await node.worker.create(PLAIN)
    await sandbox.bash("x=1")
    await node.until(lambda said: said.warm == 3)
    first.kill()
    first.wait()
    members = [made for _, made in label.labelled(state_dir) if made.sandbox_id != sandbox.handle.sandbox_id]
    os.kill(members[0].pid, signal.SIGKILL)
    await until_gone([members[0].pid])
    assert (await sandbox.bash("echo $x")).output == "1\n"
    second = keeper_process(3)
    said = await counts(node.place)
    assert (said.warm, said.live, said.cold_starts) == (2, 1, 0)
    another = await node.worker.create(PLAIN)
    assert another.handle.sandbox_id in {made.sandbox_id for made in members}
    assert (await sandbox.bash("echo $x")).output == "1\n"
    second.kill()
    second.wait()
    await sandbox.close()
    await another.close()


async def test_a_keeper_that_dies_at_any_moment_leaves_each_sandbox_to_one_owner(
    kind: str, state_dir: Path, provider: SandboxProvider, keeper_process: StartKeeper
) -> None:
    """Workers ask all the while; what they get works, and what is on disk is a job's, or the next keeper's."""
    node = Node(kind, state_dir)
    for delay_ms in (2, 11, 23):
        process = keeper_process(2)
        await node.warmed(2)
        asking = asyncio.gather(*(node.worker.create(PLAIN) for _ in range(3)))
        await asyncio.sleep(delay_ms / 1000)  # the seeded moment
        process.kill()
        process.wait()
        got = await asking
        assert len({sandbox.handle.sandbox_id for sandbox in got}) == 3
        assert all(await asyncio.gather(*map(works, got)))
        for sandbox in got:
            await sandbox.close()
    last = keeper_process(2)
    # What was half made when its keeper died is destroyed by the last one.
    await node.until(lambda said: said.warm + said.live == len(node.owners()))
    last.kill()
