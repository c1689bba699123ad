"""Limits hold for everything that runs inside, and breaking one is data, not our failure."""

import pytest

from sandbox.protocol import Limits, Sandbox
from tests.sandbox.conftest import ISOLATED, Create

pytestmark = pytest.mark.anyio

LIMITS = Limits(memory_bytes=200 << 20, file_bytes=1 << 20, cpu_s=2, open_files=40, processes=40)


@pytest.fixture
async def limited(create: Create) -> Sandbox:
    return await create(limits=LIMITS)


async def test_memory_is_limited_for_programs_shell_and_cells(limited: Sandbox) -> None:
    code = "x = bytearray(400 << 20)"
    assert b"MemoryError" in (await limited.run(["python3", "-c", code])).stderr
    assert "MemoryError" in (await limited.bash(f"python3 -c '{code}'")).output
    assert "MemoryError" in (await limited.ipython(code)).output


async def test_file_size_is_limited_for_programs_and_the_editor(limited: Sandbox) -> None:
    result = await limited.bash("head -c 5M /dev/zero > big; stat -c %s big")
    assert result.output.splitlines()[-1] == str(1 << 20)
    with pytest.raises(OSError, match=r"(?i)too large|no space left"):
        await limited.write_file("other", b"x" * (2 << 20))


async def test_cpu_time_is_limited(limited: Sandbox) -> None:
    result = await limited.run(["sh", "-c", "while :; do :; done"], timeout_s=20)
    assert (result.exit_code in (137, 152), result.timed_out) == (True, False)


async def test_open_files_are_limited(limited: Sandbox) -> None:
    result = await limited.run(["python3", "-c", "x = [open('/dev/null') for _ in range(100)]"])
    assert b"Too many open files" in result.stderr


async def test_limits_cannot_be_raised_from_inside(limited: Sandbox) -> None:
    code = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))"
    user = (await limited.run(["id", "-u"])).stdout.strip()
    if user == b"0":
        pytest.skip("a local sandbox of root is root")
    assert (await limited.run(["python3", "-c", code])).exit_code == 1


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_a_fork_bomb_stays_inside_and_leaves_the_sandbox_usable(limited: Sandbox, create: Create) -> None:
    bomb = "import os, time\nfor n in range(500):\n    if os.fork() == 0: time.sleep(60)"
    result = await limited.run(["python3", "-c", bomb], timeout_s=20)
    assert b"BlockingIOError" in result.stderr
    other = await create(limits=LIMITS)
    assert (await other.bash("sleep 0 & wait; echo fine")).exit_code == 0
    assert (await limited.run(["pkill", "-9", "-f", "time.sleep"])).exit_code in (0, 126)


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_all_scratch_space_together_is_bounded(limited: Sandbox) -> None:
    result = await limited.bash("for i in 1 2 3 4; do head -c 900K /dev/zero > part$i; done; du -sk . | cut -f1")
    assert "No space left" in result.output
    assert int(result.output.splitlines()[-1]) <= 2 * 1024  # Apptainer's is one for all places, with room for itself


@pytest.mark.parametrize("kind", ["apptainer"], indirect=True)
async def test_whatever_can_be_written_lies_in_one_bounded_file_system(limited: Sandbox) -> None:
    """Also what nobody meant for writing, such as /dev. Message queues have a limit of their own."""
    command = "find / -path /proc -prune -o -path /dev/mqueue -prune -o -type d -writable -exec stat -c '%d %n' {} +"
    found = [line.split() for line in (await limited.bash(f"{command} 2>/dev/null")).output.splitlines()]
    assert {"/tmp", "/dev", "/dev/shm", "/workspace", "/home/agent"} <= {path for _, path in found}
    assert len({device for device, _ in found}) == 1
    size = await limited.run(["stat", "-f", "-c", "%b %S", "/tmp"])
    blocks, block_bytes = map(int, size.stdout.split())
    assert blocks * block_bytes <= LIMITS.file_bytes + (2 << 20)
