"""From creation to destruction: found again by others, and nothing left at the end."""

import asyncio
import contextlib
import gc
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sandbox.errors import SandboxGone, SandboxStartFailed
from sandbox.host.process import descendants, start_time
from sandbox.isolators.kinds import make_provider
from sandbox.lifetime import label
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import Mount, Sandbox, SandboxHandle, SandboxProvider, SandboxSpec
from tests.sandbox.conftest import ISOLATED, NODE, TOOLS_DIR, Create

pytestmark = pytest.mark.anyio

MadeElsewhere = tuple[SandboxHandle, "subprocess.Popen[bytes]"]
MAKER = """
import asyncio, sys, msgspec
from pathlib import Path
from sandbox.protocol import SandboxSpec
from sandbox.isolators.kinds import make_provider

async def main():
    provider = make_provider(sys.argv[1], node=sys.argv[2], state_dir=Path(sys.argv[3]), tools_dir=Path(sys.argv[4]))
    sandbox = await provider.create(SandboxSpec(owner="maker:1"))
    await sandbox.bash("cd /tmp; x=1")
    print(msgspec.json.encode(sandbox.handle).decode(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def made_elsewhere(kind: str, state_dir: Path, tmp_path: Path) -> Iterator[MadeElsewhere]:
    """A handle, and the process that made it."""
    script = tmp_path / "maker.py"
    script.write_text(MAKER)
    command = [sys.executable, str(script), kind, NODE, str(state_dir), str(TOOLS_DIR)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as maker:
        assert maker.stdout is not None
        yield msgspec.json.decode(maker.stdout.readline(), type=SandboxHandle), maker
        maker.kill()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with sandboxes."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def directory_of(handle: SandboxHandle) -> list[str]:
    """What is left of a sandbox's directory."""
    return sorted(str(path) for path in Path(handle.directory).parent.glob(f"*{handle.sandbox_id}*"))


def sandboxes_in(state_dir: Path) -> list[Path]:
    return list((state_dir / "sandboxes").iterdir())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def processes_of(handle: SandboxHandle) -> list[int]:
    """The process that the handle names, and all below it."""
    return [pid for pid in [handle.pid, *descendants(handle.pid)] if start_time(pid)]


async def test_a_sandbox_is_attached_to_from_another_process(
    provider: SandboxProvider, made_elsewhere: MadeElsewhere
) -> None:
    handle, _ = made_elsewhere
    sandbox = await provider.attach(handle)
    assert (await sandbox.bash("echo $PWD $x")).output == "/tmp 1\n"


async def test_a_sandbox_outlives_its_killed_maker_and_can_be_swept(
    provider: SandboxProvider, made_elsewhere: MadeElsewhere, state_dir: Path
) -> None:
    handle, maker = made_elsewhere
    assert await sweep(state_dir, lambda owner: False, makers={maker.pid}) == [], "its maker lives"
    maker.kill()
    maker.wait()
    sandbox = await provider.attach(handle)
    assert (await sandbox.bash("echo $x")).output == "1\n"
    assert await sweep(state_dir, lambda owner: owner == "maker:1") == []
    assert await sweep(state_dir, lambda owner: False, makers={os.getpid()}) == [], "it is another's"
    assert await sweep(state_dir, lambda owner: False, makers=()) == [], "nobody has made it"
    assert (await sandbox.bash("echo $x")).output == "1\n"
    pids = processes_of(handle)
    assert await sweep(state_dir, lambda owner: False, makers={maker.pid}) == [handle.sandbox_id]
    assert [pid for pid in pids if start_time(pid)] == []
    assert directory_of(handle) == []
    with pytest.raises(SandboxGone):
        await sandbox.bash("true")


async def test_close_leaves_no_process_and_no_directory(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 302 & setsid sleep 303 & (setsid nohup sleep 304 >/dev/null 2>&1 &)")
    await sandbox.ipython("import subprocess\np = subprocess.Popen(['sleep', '305'], start_new_session=True)")
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    pids = [*processes_of(sandbox.handle), made.front_pid]
    assert len(pids) >= 8
    await sandbox.close()
    assert [pid for pid in pids if pid and start_time(pid)] == []
    assert directory_of(sandbox.handle) == []
    await sandbox.close()


async def test_a_closed_sandbox_is_gone_for_everybody(provider: SandboxProvider, sandbox: Sandbox) -> None:
    attached = await provider.attach(sandbox.handle)
    await attached.close()
    for call in (sandbox.bash("true"), sandbox.ipython("1"), sandbox.read_file("x"), sandbox.interrupt()):
        with pytest.raises(SandboxGone):
            await call
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.handle)
    await provider.destroy(sandbox.handle)


async def test_a_sandbox_that_dies_during_a_call_is_gone(provider: SandboxProvider, sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.bash("echo 1 > begun; sleep 60", timeout_s=60))
    await sandbox.run(["sh", "-c", "until [ -s begun ]; do :; done"])
    await provider.destroy(sandbox.handle)
    with pytest.raises(SandboxGone):
        await running


async def test_a_sandbox_whose_server_is_killed_is_gone_with_all_its_processes(sandbox: Sandbox) -> None:
    pids = processes_of(sandbox.handle)
    server = pids[1] if sandbox.handle.kind == "local" else sandbox.handle.pid
    with pytest.raises(SandboxGone):
        await asyncio.gather(sandbox.bash("sleep 60"), asyncio.to_thread(os.kill, server, signal.SIGKILL))
    await sandbox.close()
    assert [pid for pid in pids if start_time(pid)] == []


async def test_a_handle_of_another_node_or_kind_is_refused(provider: SandboxProvider, sandbox: Sandbox) -> None:
    for change in ({"node": "node-2"}, {"kind": "other"}):
        foreign = msgspec.structs.replace(sandbox.handle, **change)
        with pytest.raises(SandboxGone, match="node-1"):
            await provider.attach(foreign)
        with pytest.raises(SandboxGone):
            await provider.destroy(foreign)
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_a_recycled_process_number_is_neither_attached_to_nor_killed(
    provider: SandboxProvider, sandbox: Sandbox, stranger: subprocess.Popen[bytes]
) -> None:
    """The sandbox itself is destroyed all the same: its label still knows its process."""
    pids = processes_of(sandbox.handle)
    recycled = msgspec.structs.replace(sandbox.handle, pid=stranger.pid)
    with pytest.raises(SandboxGone):
        await provider.attach(recycled)
    await provider.destroy(recycled)
    assert stranger.poll() is None
    assert [pid for pid in pids if start_time(pid)] == []


async def test_the_private_directory_is_closed_to_others_and_labelled(sandbox: Sandbox) -> None:
    assert stat.S_IMODE(os.stat(sandbox.handle.directory).st_mode) == 0o700  # noqa: PTH116
    written = label.read(Path(sandbox.handle.directory))
    assert written is not None
    assert (written.owner, written.node, written.pid) == ("job:1", NODE, sandbox.handle.pid)


async def test_calls_at_the_same_time_and_in_turn_open_no_more_than_they_need(sandbox: Sandbox) -> None:
    await sandbox.bash("true")
    before = descriptors()
    await asyncio.gather(*(sandbox.run(["true"]) for _ in range(8)))
    for _ in range(20):
        await sandbox.bash("true")
    assert descriptors() <= before


async def test_a_client_that_is_dropped_leaves_nothing_open(provider: SandboxProvider, sandbox: Sandbox) -> None:
    gc.collect()  # what others have left must not be closed meanwhile
    before = descriptors()
    attached = await provider.attach(sandbox.handle)
    await attached.bash("true")
    assert descriptors() > before
    del attached
    assert descriptors() <= before


async def test_a_call_after_a_cancelled_one_is_its_own(sandbox: Sandbox) -> None:
    for number in range(20):
        running = asyncio.create_task(sandbox.bash(f"echo cancelled {number}"))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert (await sandbox.bash(f"echo {number}")).output.endswith(f"{number}\n")
        assert (await sandbox.run(["echo", str(number)])).stdout == f"{number}\n".encode()


async def test_twenty_sandboxes_at_once_leak_nothing(provider: SandboxProvider, state_dir: Path) -> None:
    before = descriptors()
    slots = asyncio.Semaphore(5)

    async def live(number: int) -> list[int]:
        async with slots:
            sandbox = await provider.create(SandboxSpec(owner=f"job:{number}"))
            assert (await sandbox.bash(f"echo {number}")).output == f"{number}\n"
            pids = processes_of(sandbox.handle)
            await sandbox.close()
            return pids

    pids = [pid for found in await asyncio.gather(*map(live, range(20))) for pid in found]
    assert len(pids) >= 40
    assert [pid for pid in pids if start_time(pid)] == []
    assert sandboxes_in(state_dir) == []
    await asyncio.sleep(0)  # the last ones are reaped by the loop
    assert descriptors() <= before + 1


async def test_a_cancelled_creation_leaves_nothing(provider: SandboxProvider, state_dir: Path) -> None:
    await provider.create(SandboxSpec(owner="warm"))
    made = 0
    for after_s in (0.0, 0.001, 0.003, 0.006, 0.009, 0.012, 0.02):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await provider.create(SandboxSpec(owner="cancelled"))
                made += 1
    assert [found.owner for _, found in label.labelled(state_dir)].count("cancelled") == made


async def test_what_a_dead_maker_left_half_made_is_swept(state_dir: Path, provider: SandboxProvider) -> None:
    directory, made = label.make_directory(state_dir, owner="half", kind=provider.kind, node=NODE)
    assert await sweep(state_dir, lambda owner: True) == []
    label.write(directory, msgspec.structs.replace(made, maker_started="0"))
    assert await sweep(state_dir, lambda owner: True) == [made.sandbox_id]
    assert not directory.exists()


async def test_where_no_directory_can_be_made_the_start_has_failed(
    state_dir: Path, provider: SandboxProvider, create: Create
) -> None:
    """As on a full disk. A bare `OSError` would pass the guard of the node, which would take job after job."""
    label.root(state_dir).parent.mkdir(parents=True, exist_ok=True)
    label.root(state_dir).touch()
    with pytest.raises(SandboxStartFailed, match="sandboxes"):
        await create()
    label.root(state_dir).unlink()
    assert (await (await create()).bash("echo 42")).output == "42\n"


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_a_failed_start_says_why_in_the_isolators_words(
    provider: SandboxProvider, state_dir: Path, create: Create
) -> None:
    with pytest.raises(SandboxStartFailed, match="/no/such/source"):
        await create(mounts=(Mount(source="/no/such/source", target="/data"),))
    with pytest.raises(SandboxStartFailed, match="/no/such/image"):
        await create(image="/no/such/image")
    assert sandboxes_in(state_dir) == []


async def test_a_provider_that_closes_leaves_its_sandboxes_alive(
    kind: str, state_dir: Path, provider: SandboxProvider
) -> None:
    first = make_provider(kind, node=NODE, state_dir=state_dir, tools_dir=TOOLS_DIR)
    sandbox = await first.create(SandboxSpec(owner="job:1"))
    await first.aclose()
    assert (await sandbox.bash("echo on")).output == "on\n"
    await sandbox.close()
