"""The seal: whatever runs inside is filtered, and a sandbox whose children are not is refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.isolators.apptainer import ApptainerProvider
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.isolators.kinds import make_provider
from sandbox.isolators.sealed import unsealed
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from tests.sandbox.conftest import ISOLATED, NODE, TOOLS_DIR, WITHOUT_PYTHON

everywhere = pytest.mark.parametrize("kind", [*ISOLATED, *WITHOUT_PYTHON], indirect=True)
isolated = pytest.mark.parametrize("kind", ISOLATED, indirect=True)
SEALED = ["NoNewPrivs:\t1", "Seccomp:\t2"]

NO_FILTERS = """
import ctypes, errno, os, struct
from sandbox.server.libc import call, prctl
from sandbox.server.sealing.calls import JUDGED, numbers
from sandbox.server.sealing.seal import hide_and_seal

rules = [(0x20, 0, 0, 0), (0x15, 0, 3, numbers(JUDGED, os.uname().machine)["prctl"]), (0x20, 0, 0, 16)]
rules += [(0x15, 0, 1, 22), (0x06, 0, 0, 0x50000 | errno.EINVAL), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
prctl(38, 1)
call("prctl", 22, 2, struct.pack("@HP", len(rules), ctypes.addressof(code)), 0, 0)
hide_and_seal()
print("serves")
"""
KEYRINGS = """
import os, sys
from sandbox.server.libc import syscall
from sandbox.server.sealing.calls import MISSING, numbers
from sandbox.server.sealing.seal import join_own_keyring

keyctl = numbers(MISSING, os.uname().machine)["keyctl"]
try:
    syscall(keyctl, 1, None)  # the worker's own
    before = syscall(keyctl, 0, -3, 0)
except OSError as error:
    sys.exit(f"no keyrings here: {error}")
join_own_keyring() if sys.argv[1:] else None
print("same" if syscall(keyctl, 0, -3, 0) == before else "another")
"""
WORKS = """
import asyncio, concurrent.futures, multiprocessing, os, pty, signal, socket, subprocess, threading
from multiprocessing import shared_memory

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        assert pool.map(square, range(9))[-1] == 64
    lock, queue = multiprocessing.Lock(), multiprocessing.Queue()
    child = multiprocessing.Process(target=queue.put, args=(7,))
    child.start()
    assert (queue.get(), child.join(), lock.acquire()) == (7, None, True)
    memory = shared_memory.SharedMemory(create=True, size=4096)
    memory.close()
    memory.unlink()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(square, range(9))) == 204
    async def serve():
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        await asyncio.open_connection(*server.sockets[0].getsockname())
        await (await asyncio.create_subprocess_exec("true")).wait()
    asyncio.run(serve())
    assert socket.if_nameindex()
    assert [each.family for each in socket.socketpair()] == [socket.AF_UNIX] * 2
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    assert pty.spawn(["true"]) == 0
    assert len(os.sched_getaffinity(0)) and os.nice(1)
    print("works")
"""


@pytest.fixture
async def bare(kind: str, state_dir: Path, provider: SandboxProvider, usual_image: str | None) -> Sandbox:
    """The control, with namespaces alone. `provider` sweeps it away."""
    if kind.startswith("apptainer"):
        other: SandboxProvider = ApptainerProvider(NODE, state_dir, None, TOOLS_DIR, sealed=False)
    else:
        other = BubblewrapProvider(NODE, state_dir, None, sealed=False)
    return await other.create(SandboxSpec(owner="bare", image=usual_image))


async def shown(sandbox: Sandbox, of: str) -> list[str]:
    status = (await sandbox.run(["cat", f"/proc/{of}/status"])).stdout.decode().splitlines()
    return [line for line in status if line.startswith(("NoNewPrivs:", "Seccomp:"))]


@everywhere
@pytest.mark.anyio
async def test_whatever_runs_inside_is_sealed_and_so_is_process_1(sandbox: Sandbox, bare: Sandbox) -> None:
    assert (await shown(sandbox, "self"), await shown(sandbox, "1")) == (SEALED, SEALED)
    command = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status"
    assert (await sandbox.bash(command)).output.splitlines() == SEALED
    assert unsealed((await bare.run(["cat", "/proc/self/status"])).stdout.decode(), sandbox.handle.pid)


@everywhere
@pytest.mark.anyio
async def test_a_sandbox_whose_children_are_not_sealed_is_refused(sandbox: Sandbox, bare: Sandbox) -> None:
    """By what a child says of itself, and by what the host sees of process 1, whatever the child says."""
    good, bad = [(await each.run(["cat", "/proc/self/status"])).stdout.decode() for each in (sandbox, bare)]
    assert unsealed(good, sandbox.handle.pid) == ""
    assert re.fullmatch("a child (shows|has) .* not sealed", unsealed(bad, sandbox.handle.pid))
    assert re.fullmatch("process 1 (shows|has) .* not sealed", unsealed(good, bare.handle.pid))
    inherited = re.sub("Seccomp:\t0", "Seccomp:\t2", bad)
    assert "a child has no more filters of system calls than this process" in unsealed(inherited, sandbox.handle.pid)
    assert "a child shows NoNewPrivs None" in unsealed("", sandbox.handle.pid)
    assert "process 1 cannot be looked at" in unsealed(good, 2**22 + 1)


@everywhere
@pytest.mark.anyio
async def test_keys_and_kernel_entries_of_proc_are_empty(sandbox: Sandbox, bare: Sandbox) -> None:
    command = ["cat", "/proc/cmdline", "/proc/interrupts", "/proc/keys"]
    assert (await sandbox.run(command)).stdout == b""
    assert (await bare.run(command)).stdout != b""
    undone = await sandbox.bash("umount /proc/cmdline 2>&1; cat /proc/cmdline")
    assert undone.output == "" or "umount" in undone.output


def test_where_the_kernel_sets_no_filter_the_server_ends_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FILTERS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this kernel filters no system calls (seccomp): Invalid argument" in done.stderr
    control = NO_FILTERS.replace("0x50000 | errno.EINVAL", "0x7FFF0000")
    done = subprocess.run([sys.executable, "-c", control], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("serves\n", "")


@isolated
@pytest.mark.anyio
async def test_what_programs_need_works_under_the_seal(sandbox: Sandbox) -> None:
    await sandbox.write_file("works.py", WORKS.encode())
    result = await sandbox.run(["python3", "works.py"], timeout_s=60)
    assert (result.stdout, result.stderr) == (b"works\n", b"")
    git = "git init -q r && cd r && git -c user.name=a -c user.email=a commit -q --allow-empty -m a && git gc -q"
    assert (await sandbox.bash(f"{git} && git log --format=%s", timeout_s=60)).output == "a\n"
    tools = "for tool in gcc node strace; do command -v $tool; done"
    found = (await sandbox.bash(tools)).output
    if "gcc" in found:
        compiled = "echo 'int main() { return 42; }' > a.c && gcc -pthread a.c && ./a.out"
        assert (await sandbox.bash(compiled, timeout_s=60)).exit_code == 42
    if "node" in found:
        worker = "new (require('worker_threads').Worker)('console.log(42)', {eval: true})"
        assert (await sandbox.run(["node", "-e", worker], timeout_s=60)).stdout == b"42\n"
    if "strace" in found:
        assert (await sandbox.run(["strace", "-f", "-o", "/dev/null", "sh", "-c", "true"], timeout_s=60)).exit_code == 0


@pytest.mark.parametrize(("arguments", "keyring"), [(["join"], "another"), ([], "same")])
def test_a_sealed_server_leaves_the_workers_session_keyring(arguments: list[str], keyring: str) -> None:
    done = subprocess.run([sys.executable, "-c", KEYRINGS, *arguments], capture_output=True, text=True, check=False)
    if "no keyrings here" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout == f"{keyring}\n", done.stderr


@isolated
def test_on_an_architecture_whose_numbers_are_not_known_only_local_sandboxes_are_made(
    kind: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*machine[:4], "riscv64")))
    with pytest.raises(SandboxUnavailable, match="their numbers on riscv64 are not known here"):
        make_provider(kind, node=NODE, state_dir=state_dir, tools_dir=TOOLS_DIR)
    make_provider("local", node=NODE, state_dir=state_dir)
