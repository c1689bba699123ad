"""The keeper: warm sandboxes are given away once, and whoever dies, each belongs to one owner on disk."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sandbox.keeper import place
from sandbox.keeper.place import AlreadyKept
from sandbox.keeper.pool_shape import Shape
from sandbox.keeper.wire import Count, Counts, Given, Take, ask, connected, counts
from sandbox.lifetime import label
from sandbox.lifetime.owner import Owner, OwnerKind, parse
from sandbox.protocol import SandboxLimits, SandboxProvider, SandboxSpec
from tests.sandbox.conftest import NODE
from tests.sandbox.keeper_node import PLAIN, WITHIN_S, Node, until_gone, until_stopped, works

pytestmark = pytest.mark.anyio


@pytest.fixture
async def node(kind: str, state_dir: Path, provider: SandboxProvider) -> AsyncIterator[Node]:
    del provider  # for its check that nothing is left
    made = Node(kind, state_dir)
    async with made.keeper.listening():
        yield made


only_bubblewrap = pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)


async def test_a_second_request_gets_a_warm_sandbox_with_its_own_label(node: Node) -> None:
    await node.warmed()
    sandbox = await node.worker.create(SandboxSpec(owner="default:run:g:0 17 run"))
    assert await works(sandbox)
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    assert parse(made.owner) == Owner(OwnerKind.JOB, "prorl", "default:run:g:0 17 run")
    said = await node.until(lambda said: said.warm == 1)
    assert (said.warm_hits, said.cold_starts, said.live) == (1, 1, 1)
    assert said.start_ms_p50 is not None
    assert said.hand_out_ms_p50 is not None
    await sandbox.close()


async def test_no_sandbox_is_given_twice(node: Node) -> None:
    await node.warmed(3)
    made = await asyncio.gather(*(node.worker.create(PLAIN) for _ in range(8)))
    assert len({sandbox.handle.sandbox_id for sandbox in made}) == 8
    assert all(await asyncio.gather(*map(works, made)))
    for sandbox in made:
        await sandbox.close()


@only_bubblewrap
async def test_what_cannot_be_given_later_is_made_cold(node: Node) -> None:
    """Environment, network and limits of a sandbox are those that were asked for, whatever is warm."""
    await node.warmed()
    with_environment = await node.worker.create(SandboxSpec(owner="j", environment={"X": "1"}))
    assert (await with_environment.bash("echo $X")).output == "1\n"
    limited = await node.worker.create(SandboxSpec(owner="j", limits=SandboxLimits(open_files=77)))
    assert (await limited.bash("ulimit -n")).output == "77\n"
    said = await node.until(lambda said: said.warm >= 1)
    assert said.warm_hits == 0
    await with_environment.close()
    await limited.close()


@only_bubblewrap
async def test_a_dead_and_a_silent_member_are_replaced_not_given(node: Node) -> None:
    await node.warmed(2)
    members = [made for _, made in label.labelled(node.state_dir)]
    os.kill(members[0].pid, signal.SIGKILL)
    await until_gone([members[0].pid])
    os.kill(members[1].pid, signal.SIGSTOP)
    await until_stopped(members[1].pid)
    sandbox = await node.worker.create(PLAIN)
    assert sandbox.handle.sandbox_id not in {made.sandbox_id for made in members}
    assert await works(sandbox)
    await node.until(lambda said: said.warm >= 2)
    await until_gone([made.pid for made in members])
    await sandbox.close()


async def test_a_sandbox_that_is_not_acknowledged_is_destroyed(node: Node) -> None:
    """The worker that asked has died, or its job was cancelled meanwhile."""
    await node.warmed()
    owner = Owner(OwnerKind.JOB, "prorl", "j").text
    async with connected(node.place) as connection:
        given = await ask(connection, Take(kind=node.worker.kind, shape=Shape(), owner=owner), Given)
        assert given.handle is not None
        made = label.read(Path(given.handle.directory))
        assert made is not None
        assert made.owner == owner
    await until_gone([given.handle.pid])
    await node.until(lambda said: (said.live, said.warm) == (0, 1))


async def test_room_bounds_the_pool(node: Node) -> None:
    for _ in range(6):
        assert await node.keeper.pool.take(Shape(), "job prorl j") is None
    node.keeper.pool.make_room(4)
    await node.until(lambda said: said.warm == 4)
    node.keeper.pool.make_room(1)
    await node.until(lambda said: said.warm == 1)
    async with asyncio.timeout(WITHIN_S):
        while node.owners() != ["pool"]:
            await asyncio.sleep(0.01)


async def test_a_shape_that_cannot_be_started_does_not_stop_the_keeper(node: Node) -> None:
    async with connected(node.place) as connection:
        request = Take(kind=node.worker.kind, shape=Shape(image="/no/such\0image"), owner="job prorl j")
        assert (await ask(connection, request, Given)).handle is None
    await node.warmed()


@pytest.mark.parametrize(
    "sent",
    [b'{"type":"dance"}\n', b'{"type":"count","x":' + b"[" * 30_000 + b"\n", b"x" * 100_000],
    ids=["another", "nested", "long"],
)
async def test_nonsense_gets_no_answer(node: Node, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(node.place) as connection:
        with contextlib.suppress(OSError):  # it is closed before all of it has come
            await asyncio.get_running_loop().sock_sendall(connection, sent)
            assert await asyncio.get_running_loop().sock_recv(connection, 100) == b""
    assert caplog.text == ""
    async with connected(node.place) as connection:
        assert (await ask(connection, Count(), Counts)).warm == 0


async def test_without_a_keeper_a_worker_makes_its_sandboxes_and_says_so_once(
    kind: str, state_dir: Path, provider: SandboxProvider, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(kind, state_dir)
    with caplog.at_level("WARNING", "sandbox.keeper.client"):
        for _ in range(2):
            sandbox = await node.worker.create(PLAIN)
            assert await works(sandbox)
            await sandbox.close()
    assert [record.message.startswith("no keeper at") for record in caplog.records] == [True]


async def test_a_pool_ends_with_its_keeper_and_jobs_sandboxes_do_not(
    kind: str, state_dir: Path, provider: SandboxProvider
) -> None:
    node = Node(kind, state_dir)
    async with node.keeper.listening():
        await node.warmed()
        sandbox = await node.worker.create(PLAIN)
    assert node.owners() == ["job"]
    assert await works(sandbox)
    assert not (node.place / label.SOCKET).exists()
    await sandbox.close()


async def test_a_node_has_one_keeper_and_another_service_its_own(
    kind: str, state_dir: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "WAIT_S", 0.1)
    with pytest.raises(AlreadyKept, match="prorl@node-1"):
        async with Node(kind, state_dir).keeper.listening():
            pass
    other = Node(kind, state_dir, service="other/service 2")
    await node.warmed()
    async with other.keeper.listening():
        assert (await counts(other.place)).warm == 0
        await other.warmed()
        assert (await counts(node.place)).warm == 1
    assert (await counts(node.place)).warm == 1
    assert await works(await node.worker.create(PLAIN))


async def test_the_command_line_shows_keepers_and_warm_sandboxes(node: Node) -> None:
    await node.warmed()

    async def said(*words: str) -> str:
        argv = [sys.executable, "-m", "sandbox", *words, "--state-dir", str(node.state_dir)]
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        return out.decode()

    listed, kept = await asyncio.gather(said("list"), said("keepers"))
    assert "  warm  " in listed
    assert "pool prorl {" in listed
    name, _, rest = kept.partition("  ")
    assert name == f"prorl@{NODE}"
    assert msgspec.json.decode(rest, type=Counts).warm == 1
