"""Limits hold for everything that runs inside, and breaking one is data, not our failure."""

import asyncio
import re

import pytest
from msgspec.structs import replace

from sandbox.errors import SandboxGone
from sandbox.protocol import Sandbox, SandboxLimits, SandboxProvider
from tests.sandbox.conftest import ISOLATED, Create

pytestmark = pytest.mark.anyio

LIMITS = SandboxLimits(
    memory_bytes=200 << 20, disk_bytes=4 << 20, file_bytes=1 << 20, cpu_s=2, open_files=40, processes=40
)


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


async def test_cpu_time_is_limited(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(cpu_s=1))
    result = await sandbox.run(["sh", "-c", "setsid -w sh -c 'while :; do :; done'"], timeout_s=100)
    assert (result.exit_code in (137, 152), result.timed_out) == (True, False)
    result = await sandbox.bash("while :; do :; done", timeout_s=100)
    assert (result.timed_out, "the shell ended with exit code" in result.output) == (False, True)
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_cpu_time_is_limited_for_cells(limited: Sandbox) -> None:
    result = await limited.ipython("while True: pass", timeout_s=100)
    assert (result.timed_out, "the kernel was killed" in result.output) == (False, True)
    assert (await limited.ipython("1")).output == "1\n"


async def test_open_files_are_limited(limited: Sandbox) -> None:
    result = await limited.run(["python3", "-c", "x = [open('/dev/null') for _ in range(100)]"])
    assert b"Too many open files" in result.stderr


async def test_a_shell_out_of_descriptors_is_still_a_shell(limited: Sandbox) -> None:
    result = await limited.bash("for n in {1..100}; do exec {fd}</dev/null || break; done; echo $fd")
    assert "Too many open files" in result.output
    await limited.bash("true", timeout_s=5)  # it may have to be replaced
    assert (await limited.bash("echo on", timeout_s=50)).output.endswith("on\n")


RAISE = """
import resource
for name in ("DATA", "NPROC", "FSIZE", "CPU", "NOFILE"):
    kind = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY:
        continue
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
        print("raised", name)
    except (ValueError, OSError):
        print("kept", name)
"""


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_limits_cannot_be_raised_from_inside(limited: Sandbox) -> None:
    kept = [f"kept {name}" for name in ("DATA", "NPROC", "FSIZE", "CPU", "NOFILE")]
    assert (await limited.run(["python3", "-c", RAISE])).stdout.decode().splitlines() == kept
    assert (await limited.ipython(RAISE)).output.splitlines() == kept
    result = await limited.bash("ulimit -Hn 4000; ulimit -Hu 4000; ulimit -Hn; ulimit -Hu")
    assert result.output.splitlines()[-2:] == ["40", "40"]


MANY_SMALL = """
import os, time
for n in range(12):
    if os.fork() == 0:
        {escape}
        x = bytearray(40 << 20)
        time.sleep(60)
time.sleep(60)
"""
MESSAGE = "over the memory limit"


async def test_many_small_processes_share_one_memory_limit(limited: Sandbox) -> None:
    result = await limited.run(["python3", "-c", MANY_SMALL.format(escape="pass")], timeout_s=100)
    assert (result.exit_code, result.timed_out, MESSAGE in result.stderr.decode()) == (137, False, True)
    result = await limited.bash(f"python3 -c '{MANY_SMALL.format(escape='pass')}'", timeout_s=100)
    assert (result.exit_code, result.timed_out, MESSAGE in result.output) == (137, False, True)


async def test_processes_that_leave_their_session_are_counted_all_the_same(limited: Sandbox) -> None:
    """Each of them is a group of its own, so one after the other goes until the rest fits."""
    escape = "os.fork() and os._exit(0); os.setsid()"
    result = await limited.bash(f"python3 -c '{MANY_SMALL.format(escape=escape)}'", timeout_s=8)
    assert MESSAGE in result.output
    assert (await limited.bash("echo on")).output.startswith("on\n")  # what is killed only now is told behind it


async def test_shared_memory_is_counted(limited: Sandbox) -> None:
    """No resource limit sees it."""
    write = "[x.write(b'x' * (1 << 20)) for _ in range(400)]"
    code = f"import mmap, time; x = mmap.mmap(-1, 400 << 20); {write}; time.sleep(60)"
    result = await limited.run(["python3", "-c", code])
    assert (result.exit_code, MESSAGE in result.stderr.decode()) == (137, True)


async def test_pages_shared_by_a_fork_count_once(limited: Sandbox) -> None:
    code = "import os, time; x = b'x' * (60 << 20); [os.fork() for _ in range(3)]; time.sleep(2); os.wait3(0)"
    result = await limited.run(["python3", "-c", code.replace("os.wait3(0)", "[os.wait() for _ in iter(int, 1)]")])
    assert (result.timed_out, MESSAGE in result.stderr.decode()) == (False, False)


async def test_a_message_that_nobody_waits_for_comes_with_the_next_answer(limited: Sandbox) -> None:
    await limited.bash(f"python3 -c '{MANY_SMALL.format(escape='pass')}' >/dev/null 2>&1 & pid=$!")
    result = await limited.bash("wait $pid", timeout_s=100)
    assert result.exit_code == 137
    assert MESSAGE in result.output + (await limited.bash("true")).output


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_a_full_sandbox_answers_more_clients_than_it_has_room_for(
    create: Create, provider: SandboxProvider
) -> None:
    """The server has a thread for each client; where it cannot start one, clients take turns."""
    sandbox = await create(limits=LIMITS)
    await sandbox.write_file("file", b"content")
    await sandbox.bash("for n in {1..60}; do sleep 60 & done 2>/dev/null", timeout_s=5)
    clients = [await provider.attach(sandbox.handle) for _ in range(30)]
    for _ in range(2):
        for client in clients:
            assert await client.read_file("file") == b"content"


async def until_something_starts(sandbox: Sandbox) -> str:
    """What the shell says until then."""
    output = ""
    async with asyncio.timeout(60):
        while "works" not in output:
            output += (await sandbox.bash("(sleep 0; echo works)", timeout_s=20)).output
    return output


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_a_fork_bomb_stays_inside_and_is_ended(limited: Sandbox, create: Create) -> None:
    bomb = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"
    result = await limited.bash(f"python3 -c '{bomb}'", timeout_s=20)
    other = await create(limits=LIMITS)
    assert (await other.bash("sleep 0 & wait; echo fine")).exit_code == 0
    assert "the limit of 40 processes" in result.output + await until_something_starts(limited)


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
@pytest.mark.parametrize("bomb", [":(){ :|:& }; :", "while :; do setsid sleep 100 & done"])
async def test_other_fork_bombs_leave_the_sandbox_usable(limited: Sandbox, bomb: str) -> None:
    await limited.bash(bomb, timeout_s=20)
    await until_something_starts(limited)


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_the_size_of_each_writable_place_is_bounded(limited: Sandbox) -> None:
    """Bubblewrap's places have a hard limit each, and their sum a soft one, which may come first."""
    result = await limited.bash("for i in 1 2 3 4 5 6 7; do head -c 900K /dev/zero > part$i; done")
    assert re.search("No space left|over the disk limit", result.output), result
    used = await limited.run(["sh", "-c", "du -sk .; stat -f -c '%b %S' ."])
    files_kib, _, blocks, block_bytes = used.stdout.split()
    assert int(files_kib) <= 6 * 1024  # Apptainer's is one for all places, with room for itself
    assert int(blocks) * int(block_bytes) <= 6 << 20


@pytest.mark.parametrize("kind", ["apptainer"], indirect=True)
async def test_whatever_can_be_written_lies_in_one_bounded_file_system(limited: Sandbox) -> None:
    """Also what nobody meant for writing, such as /dev. Message queues have a limit of their own."""
    command = "find / -path /proc -prune -o -path /dev/mqueue -prune -o -type d -writable -exec stat -c '%d %n' {} +"
    found = [line.split() for line in (await limited.bash(f"{command} 2>/dev/null")).output.splitlines()]
    assert {"/tmp", "/dev", "/dev/shm", "/workspace", "/home/agent"} <= {path for _, path in found}
    assert len({device for device, _ in found}) == 1
    size = await limited.run(["stat", "-f", "-c", "%b %S", "/tmp"])
    blocks, block_bytes = map(int, size.stdout.split())
    assert blocks * block_bytes <= LIMITS.disk_bytes + (2 << 20)


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
@pytest.mark.parametrize("fill", [
    "for d in /tmp /workspace /dev/shm; do for i in 1 2 3; do head -c 900K /dev/zero > $d/$i; done; done; sleep 30",
    "mkdir many; cd many; for i in {1..20000}; do : > $i; done; sleep 30",
])  # fmt: skip
async def test_files_of_all_places_share_one_disk_limit(limited: Sandbox, fill: str) -> None:
    await limited.bash("kept=1")
    result = await limited.bash(fill, timeout_s=100)
    assert (result.timed_out, "over the disk limit" in result.output) == (False, True)
    after = await limited.bash("rm -rf /tmp/* /workspace/* /dev/shm/*; echo $kept")
    assert "1" in after.output.splitlines(), (result, after)


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_hundred_megabytes_of_output_are_cut(limited: Sandbox) -> None:
    command = "head -c 100000000 /dev/zero | tr '\\0' x"
    for result in (await limited.bash(command), await limited.ipython("for _ in range(1000): print('x' * 100_000)")):
        assert result.dropped_bytes > 99_000_000, result
        assert len(result.output) < (64 << 10) + 100


async def test_a_sandbox_ends_when_its_time_is_over(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(wall_s=1))
    with pytest.raises(SandboxGone):
        await sandbox.bash("sleep 60", timeout_s=60)
    await sandbox.close()


SOCKETS = """
import socket, time
made = []
for _ in range(400):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        pair = socket.socketpair(socket.AF_UNIX, kind)
        made += pair
        for one in pair:
            one.setblocking(False)
            try:
                while True:
                    one.send(bytes(60000))
            except BlockingIOError:
                pass
print("done")
time.sleep(60)
"""
TABLES = """
import ctypes, time
library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size = 400 << 30
at = library.mmap(None, size, 1, 0x4022, -1, 0)  # private, of no file, not reserved: the page of zeros
for offset in range(0, size, 2 << 20):
    ctypes.string_at(at + offset, 1)
print("done")
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
@pytest.mark.parametrize(("code", "words"), [(SOCKETS, r"MiB in sockets\)"), (TABLES, "takes [0-9]+ MiB of 100 MiB")])
async def test_memory_of_the_kernel_counts(create: Create, code: str, words: str) -> None:
    """In a larger sandbox the same program gets what it asks for."""
    limits = SandboxLimits(memory_bytes=100 << 20, open_files=2000)
    small, large = await create(limits=limits), await create(limits=replace(limits, memory_bytes=1 << 30))
    result = await small.run(["python3", "-c", code], timeout_s=100)
    assert (result.exit_code, result.stdout, result.timed_out) == (137, b"", False)
    assert re.search(words, result.stderr.decode())
    assert (await small.bash("echo on", timeout_s=100)).output.endswith("on\n")
    assert (await small.ipython("1", timeout_s=100)).output.endswith("1\n")
    result = await large.run(["python3", "-c", code.replace("time.sleep(60)", "")], timeout_s=100)
    assert (result.exit_code, result.stdout) == (0, b"done\n")


@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_there_is_no_file_in_memory_but_those_of_the_sandboxs_directories(limited: Sandbox) -> None:
    """One that no process maps, or that is on its way between two, would count nowhere."""
    result = await limited.run(["python3", "-c", "import os; os.memfd_create('x')"])
    assert b"Function not implemented" in result.stderr
