"""An image without Python: the server stands outside, and everything but cells is as elsewhere.

The contracts of the shell, of programs, files, transfers and the editor run against such an image in their own modules.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sandbox.errors import SandboxGone, SandboxStartFailed
from sandbox.host.process import ended, opened, start_time
from sandbox.lifetime import label
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import Sandbox, SandboxLimits, SandboxProvider
from sandbox.server.libc import CHILD_SUBREAPER, prctl
from tests.sandbox.conftest import NODE, TOOLS_DIR, WITHOUT_PYTHON, Create

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", WITHOUT_PYTHON, indirect=True)]
ROOT = Path(__file__).parents[2]
ASK = """
import asyncio, sys, msgspec
from pathlib import Path
from sandbox.protocol import SandboxHandle
from sandbox.isolators.kinds import make_provider

async def main():
    handle = msgspec.json.decode(sys.argv[4], type=SandboxHandle)
    provider = make_provider(
        handle.kind, node=sys.argv[1], state_dir=Path(sys.argv[2]), tools_dir=Path(sys.argv[3])
    )
    sandbox = await provider.attach(handle)
    print((await sandbox.bash("echo $PWD $x")).output, end="")

asyncio.run(main())
"""


def namespaces() -> set[str]:
    return {str(path.readlink()) for path in Path("/proc/self/ns").iterdir()}


def label_of(sandbox: Sandbox) -> label.Label:
    """Its label."""
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    return made


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until_ended(pid: int, started: str) -> None:
    with opened(pid, started) as descriptor:
        assert descriptor is None or await ended(descriptor, 20)


async def test_cells_are_refused_with_a_reason(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("1")
    assert (result.ok, result.output) == (False, "[this image has no Python, so there are no cells here: use bash]")


async def test_another_process_of_the_node_reaches_it_through_its_handle(sandbox: Sandbox, state_dir: Path) -> None:
    await sandbox.bash("cd /tmp; x=1")
    handle = msgspec.json.encode(sandbox.handle).decode()
    command = [sys.executable, "-c", ASK, NODE, str(state_dir), str(TOOLS_DIR), handle]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "/tmp 1\n"


async def test_the_server_is_neither_seen_nor_signalled_from_inside(sandbox: Sandbox) -> None:
    result = await sandbox.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "--enter" not in result.output
    assert str(ROOT) not in result.output
    assert (await sandbox.run(["bash", "-c", "kill -9 1; kill -9 -1"])).exit_code == 0
    await sandbox.bash("true")  # the shell may be dying yet
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_what_it_starts_has_no_more_rights_than_what_it_found(sandbox: Sandbox) -> None:
    result = await sandbox.run(["grep", "-E", "^(Cap|NoNewPrivs)", "/proc/self/status"])
    words = {line.split()[0]: set(line.split()[1:]) for line in result.stdout.decode().splitlines()}
    none = {"0" * 16}
    assert words == {
        "CapInh:": none, "CapPrm:": none, "CapEff:": none, "CapBnd:": none, "CapAmb:": none,
        "NoNewPrivs:": {"1"},
    }  # fmt: skip
    links = "for name in user pid mnt net ipc uts; do readlink /proc/self/ns/$name /proc/1/ns/$name; done"
    spaces = (await sandbox.bash(links)).output.split()
    assert len(set(spaces)) == 6
    assert not set(spaces) & namespaces()


async def test_the_server_dies_with_the_sandbox(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 301 & setsid sleep 302 &")
    made = label_of(sandbox)
    os.kill(sandbox.handle.pid, signal.SIGKILL)
    await until_ended(made.server_pid, made.server_started)
    with pytest.raises(SandboxGone):
        await sandbox.bash("true")


async def test_the_sandbox_dies_with_the_server(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 301 & setsid sleep 302 &")
    os.kill(label_of(sandbox).server_pid, signal.SIGKILL)
    await until_ended(sandbox.handle.pid, sandbox.handle.pid_started)
    with pytest.raises(SandboxGone):
        await sandbox.bash("true")
    await sandbox.close()


@pytest.fixture
def nobody_reaps() -> Iterator[None]:
    """Orphans come to this process, which lets them lie, as process 1 of many a container does."""
    prctl(CHILD_SUBREAPER, 1)
    yield
    prctl(CHILD_SUBREAPER, 0)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.mark.parametrize("end", ["server killed", "server hung"])
@pytest.mark.usefixtures("nobody_reaps")
async def test_it_ends_where_nobody_reaps_orphans(sandbox: Sandbox, end: str) -> None:
    await sandbox.bash("sleep 301 & setsid sleep 302 &")
    os.kill(label_of(sandbox).server_pid, signal.SIGKILL if end == "server killed" else signal.SIGSTOP)
    if end == "server killed":
        await until_ended(sandbox.handle.pid, sandbox.handle.pid_started)
    await sandbox.close()


@pytest.mark.parametrize("end", ["close", "close a hung one", "sweep"])
async def test_nothing_is_left(sandbox: Sandbox, state_dir: Path, end: str) -> None:
    await sandbox.bash("sleep 301 & setsid sleep 302 &")
    made = label_of(sandbox)
    if end == "close a hung one":
        os.kill(made.server_pid, signal.SIGSTOP)
    if end != "sweep":
        await sandbox.close()
    else:
        assert await sweep(state_dir, lambda owner: False) == [sandbox.handle.sandbox_id]
    assert (start_time(made.pid), start_time(made.server_pid)) == (None, None)
    assert label.read(Path(sandbox.handle.directory)) is None


async def test_many_at_once_leave_no_process_and_no_descriptor(provider: SandboxProvider, create: Create) -> None:
    await (await create()).close()
    before = descriptors()
    sandboxes = await asyncio.gather(*(create(f"job:{number}") for number in range(6)))
    outputs = [result.output for result in await asyncio.gather(*(made.bash("echo on") for made in sandboxes))]
    assert outputs == ["on\n"] * 6
    servers = [label_of(made).server_pid for made in sandboxes]
    await asyncio.gather(*(made.close() for made in sandboxes))
    assert [server for server in servers if start_time(server)] == []
    await asyncio.sleep(0)
    assert descriptors() <= before + 1


async def test_a_cancelled_creation_leaves_nothing(state_dir: Path, create: Create) -> None:
    made = 0
    for after_s in (0.005, 0.02, 0.04, 0.06):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await create("cancelled")
                made += 1
    assert [found.owner for _, found in label.labelled(state_dir)].count("cancelled") == made


async def test_limits_hold(create: Create) -> None:
    """The memory limit alone is soft: bash has no arrays that pass it, so a hog is many of them.

    Another command follows `sleep`: bash becomes its last one, and holds nothing then.
    """
    sandbox = await create(limits=SandboxLimits(memory_bytes=64 << 20, disk_bytes=8 << 20, processes=40, cpu_s=2))
    hog = "for n in {1..10}; do bash -c 'x=$(printf %012000000d 1); sleep 10; :' & done; wait"
    assert "over the memory limit" in (await sandbox.bash(hog, timeout_s=100)).output
    fill = "head -c 6M /dev/zero >/tmp/a; head -c 6M /dev/zero >/dev/shm/b; sleep 60"
    assert "over the disk limit" in (await sandbox.bash(fill, timeout_s=100)).output
    assert (await sandbox.run(["sh", "-c", "while :; do :; done"], timeout_s=100)).exit_code in (137, 152)
    bomb = "for n in {1..80}; do sleep 60 & done; sleep 60"
    assert "fork" in (await sandbox.bash(bomb, timeout_s=20)).output
    assert "40" in (await sandbox.bash("ulimit -Hu 4000; ulimit -Hu")).output.splitlines()


async def test_its_time_ends(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(wall_s=1))
    with pytest.raises(SandboxGone):
        await sandbox.bash("sleep 60", timeout_s=60)
    await until_ended(sandbox.handle.pid, sandbox.handle.pid_started)


@pytest.fixture
def image_without_bash(image_without_python: Path) -> Iterator[str]:
    image = image_without_python.with_name(image_without_python.name + "-without-bash")
    shutil.copytree(image_without_python, image, symlinks=True)
    (image / "usr" / "bin" / "bash").unlink()
    yield str(image)
    shutil.rmtree(image)


async def test_an_image_without_bash_runs_programs_and_says_what_is_missing(
    create: Create, image_without_bash: str
) -> None:
    sandbox = await create(image=image_without_bash)
    assert (await sandbox.run(["sh", "-c", "echo on"])).stdout == b"on\n"
    assert "bash cannot be started: No such file" in (await sandbox.bash("true")).output


@pytest.fixture
def image_without_shell() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="prorl-image-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        Path(name, "usr").mkdir()
        yield name


async def test_an_image_without_any_shell_is_refused_in_the_isolators_words(
    create: Create, image_without_shell: str
) -> None:
    with pytest.raises(SandboxStartFailed, match=r"/bin/sh: [Nn]o such file"):
        await create(image=image_without_shell)
