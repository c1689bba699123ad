"""What is inside cannot see what is outside."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.protocol import Mount, Sandbox
from tests.sandbox.conftest import ISOLATED, Create

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ISOLATED, indirect=True)]


async def test_the_host_is_invisible(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for path in (Path.home(), tmp_path, Path(__file__), Path("/etc/shadow"), Path("/var/log")):
        result = await sandbox.run(["stat", "-c", "%d %i", str(path)])  # an image has some of its own
        assert result.stdout.split() != [str(path.stat().st_dev).encode(), str(path.stat().st_ino).encode()], path
    assert (await sandbox.run(["ls", str(tmp_path)])).exit_code != 0


async def test_another_sandbox_is_invisible(create: Create) -> None:
    one, two = await create("job:1"), await create("job:2")
    await one.bash("echo secret > /tmp/mine; echo secret > ~/mine; sleep 301 &")
    result = await two.bash("ls -A /tmp ~ /workspace; ps -A | grep sleep")
    assert "mine" not in result.output
    assert "sleep" not in result.output
    assert (await two.run(["ls", one.handle.directory])).exit_code != 0


async def test_host_processes_are_invisible_and_cannot_be_signalled(sandbox: Sandbox) -> None:
    pids = [int(word) for word in (await sandbox.run(["ps", "-A", "-o", "pid="])).stdout.split()]
    assert len(pids) < 8
    assert (await sandbox.bash(f"kill -0 {os.getpid()}")).exit_code == 1


async def test_the_environment_has_only_what_was_given(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "secret")
    sandbox = await create(environment={"GIVEN": "yes"})
    result = await sandbox.run(["env"])
    assert b"GIVEN=yes" in result.stdout
    assert b"secret" not in result.stdout
    assert b"secret" not in (await sandbox.run(["sh", "-c", "cat /proc/[0-9]*/environ"])).stdout
    assert "'yes'" in (await sandbox.ipython("import os\nos.environ['GIVEN']")).output


async def test_command_lines_inside_do_not_name_host_paths(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert str(Path(sandbox.handle.directory).parent).encode() not in result.stdout
    assert b"ro-bind" not in result.stdout


async def test_the_network_is_off_unless_asked_for(create: Create) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 5)"
        off, on = await create(), await create(network=True)
        assert b"refused" in (await off.run(["python3", "-c", connect])).stderr
        assert (await on.run(["python3", "-c", connect])).exit_code == 0


async def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox: Sandbox) -> None:
    name = "\0prorl-test-" + os.urandom(4).hex()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert b"refused" in (await sandbox.run(["python3", "-c", code])).stderr


async def test_there_are_no_privileges_inside(sandbox: Sandbox) -> None:
    status = (await sandbox.run(["cat", "/proc/self/status"])).stdout.decode()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (values["CapEff"], values["CapBnd"], values["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
    assert (await sandbox.run(["unshare", "-U", "true"])).exit_code != 0


async def test_only_the_scratch_places_can_be_written(sandbox: Sandbox, kind: str) -> None:
    """Apptainer's /dev can be written to; it is memory within the sandbox's bound, see test_limits."""
    for place in ("/", "/usr", "/etc", "/opt", "/opt/prorl", "/proc", *(("/dev",) if kind == "bubblewrap" else ())):
        assert (await sandbox.run(["touch", f"{place}/x"])).exit_code != 0, place
    for place in ("/tmp", "/home/agent", "/workspace", "/dev/shm", "/var/tmp"):
        assert (await sandbox.run(["touch", f"{place}/x"])).exit_code == 0, place


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def shared() -> Iterator[Path]:
    """A host directory that everybody may write: a sandbox of root's worker is not root."""
    with tempfile.TemporaryDirectory(prefix="prorl-mount-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o777)
        Path(directory, "data").write_text("data")
        yield Path(directory)


async def test_mounts_are_read_only_unless_said(create: Create, shared: Path) -> None:
    mounts = (Mount(source=str(shared), target="/data"), Mount(source=str(shared), target="/out", writable=True))
    sandbox = await create(mounts=mounts)
    assert await sandbox.read_file("/data/data") == b"data"
    assert (await sandbox.run(["touch", "/data/x"])).exit_code != 0
    assert (await sandbox.run(["touch", "/out/x"])).exit_code == 0
    assert names_in(shared) == ["data", "x"]


async def test_killing_every_python_by_name_spares_the_server(sandbox: Sandbox) -> None:
    await sandbox.bash("pkill -9 python; pkill -9 -f python; killall python3")
    assert (await sandbox.bash("echo on")).output == "on\n"
