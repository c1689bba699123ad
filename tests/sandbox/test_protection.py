"""What runs inside can neither end, nor trace, nor stand in for the server that runs it."""

import pytest

from sandbox.protocol import Sandbox
from tests.sandbox.conftest import ISOLATED

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ISOLATED, indirect=True)]

TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
ATTACH, SEIZE, PIDFD_OPEN, PIDFD_GETFD = 16, 0x4206, 434, 438
for request in (ATTACH, SEIZE):
    print(libc.ptrace(request, 1, 0, 0), os.strerror(ctypes.get_errno()))
pidfd = libc.syscall(PIDFD_OPEN, 1, 0)
print(pidfd > 0, [libc.syscall(PIDFD_GETFD, pidfd, fd, 0) for fd in range(16)] == [-1] * 16)
"""


async def test_the_server_survives_every_signal_from_inside(sandbox: Sandbox) -> None:
    await sandbox.bash("kept=1")
    signals = "for n in {1..64}; do kill -$n 1 2>/dev/null; done"
    assert (await sandbox.bash(f"{signals}; echo $kept")).output == "1\n"
    assert (await sandbox.run(["bash", "-c", "kill -STOP 1; kill -9 1; kill -9 -1"])).exit_code == 0
    await sandbox.bash("true")  # the shell may be dying yet
    assert (await sandbox.bash("echo on")).output == "on\n"
    assert (await sandbox.ipython("1")).ok


async def test_the_server_cannot_be_traced_or_robbed_of_a_descriptor(sandbox: Sandbox) -> None:
    result = await sandbox.run(["python3", "-c", TRACE])
    assert result.stdout.decode().splitlines() == ["-1 Operation not permitted"] * 2 + ["True True"]


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "fd/10", "cwd/x", "root/etc/passwd"])
async def test_nothing_of_the_server_can_be_read(sandbox: Sandbox, name: str) -> None:
    assert b"Permission denied" in (await sandbox.run(["cat", f"/proc/1/{name}"])).stderr


async def test_orphans_are_reaped(sandbox: Sandbox) -> None:
    await sandbox.bash("for n in {1..20}; do (sleep 0 & ); done; (setsid sleep 0.1 &); sleep 0.3")
    await sandbox.bash("for n in {1..100}; do grep -q 'Z (zombie)' /proc/[0-9]*/status || break; sleep 0.1; done")
    result = await sandbox.bash("grep -l 'Z (zombie)' /proc/[0-9]*/status")
    assert result.output == ""
