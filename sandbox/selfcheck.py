"""Checks that sandboxes of a kind work on this machine: the contract in short, on real ones."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from sandbox.errors import SandboxGone
from sandbox.isolators.writable.ways import Ways
from sandbox.lifetime import allotment, cgroup, label
from sandbox.protocol import REMOTE, EditorCommand, Sandbox, SandboxLimits, SandboxProvider, SandboxSpec

HOST_FILE = str(Path(__file__).absolute())
LIMITS = SandboxLimits(memory_bytes=256 << 20, disk_bytes=64 << 20, file_bytes=16 << 20, open_files=64, processes=64)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `problem` is empty when it holds."""

    name: str
    problem: str
    ms: float
    note: str = ""


class _Failed(Exception):
    """A check's answer is not the expected one."""


def _expect(condition: bool, got: object) -> None:
    if not condition:
        raise _Failed(f"got {got!r}")


async def bash_works(sandbox: Sandbox) -> None:
    result = await sandbox.bash("cd /tmp && X=1; echo $((40 + 2))")
    _expect((result.output, result.exit_code) == ("42\n", 0), result)


async def shell_keeps_state(sandbox: Sandbox) -> None:
    result = await sandbox.bash('echo "$PWD $X"')
    _expect(result.output == "/tmp 1\n", result)  # noqa: S108 - inside


async def timeout_leaves_usable_shell(sandbox: Sandbox) -> None:
    result = await sandbox.bash("sleep 60", timeout_s=0.2)
    _expect(result.timed_out, result)
    result = await sandbox.bash("echo on")
    _expect(result.output == "on\n", result)


async def command_reads_input(sandbox: Sandbox) -> None:
    result = await sandbox.bash("read answer; echo got $answer")
    _expect(result.exit_code is None, result)
    result = await sandbox.bash("yes", is_input=True)
    _expect(result.output.endswith("got yes\n"), result)


async def cells_keep_state(sandbox: Sandbox) -> None:
    await sandbox.ipython("x = 20")
    result = await sandbox.ipython("x + 1")
    _expect(result.ok and result.output == "21\n", result)


async def cells_have_ipython(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("get_ipython().__class__.__name__")
    _expect(
        result.ok,
        "plain Python cells: run `prorl-mq install-tools sandbox --state-dir DIR`, and name DIR with --tools-dir",
    )


async def program_runs(sandbox: Sandbox) -> None:
    result = await sandbox.run(["cat"], stdin=b"abc")
    _expect((result.stdout, result.exit_code) == (b"abc", 0), result)


async def file_is_edited(sandbox: Sandbox) -> None:
    await sandbox.write_file("notes/a.txt", b"one\n")
    path = (await sandbox.run(["readlink", "-f", "notes/a.txt"])).stdout.decode().strip()
    await sandbox.edit(EditorCommand(command="str_replace", path=path, old_str="one", new_str="two"))
    data = await sandbox.read_file(path)
    _expect(data == b"two\n", data)


async def memory_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.run(["python3", "-c", "bytearray(1 << 30)"])
    _expect(result.exit_code != 0, result)


async def file_size_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.run(["head", "-c", "64M", "/dev/zero"], output_bytes=10)
    _expect(result.dropped_bytes > 0, result)
    result = await sandbox.run(["bash", "-c", "head -c 64M /dev/zero > big"])
    _expect(result.exit_code != 0, result)


async def output_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.bash("head -c 2000000 /dev/zero | tr '\\0' x")
    _expect(result.dropped_bytes > 0 and len(result.output) <= LIMITS.output_bytes + 100, len(result.output))


async def processes_are_limited(sandbox: Sandbox) -> None:
    script = "import os\nfor n in range(200):\n    if os.fork() == 0: import time; time.sleep(9)"
    result = await sandbox.run(["python3", "-c", script])
    await sandbox.bash("pkill -f time.sleep")
    _expect(result.exit_code != 0, result)


async def network_is_off(sandbox: Sandbox) -> None:
    result = await sandbox.run(["cat", "/proc/net/dev"])
    names = [line.split(":")[0].strip() for line in result.stdout.decode().splitlines()[2:]]
    _expect(names == ["lo"], names)


async def host_is_invisible(sandbox: Sandbox) -> None:
    result = await sandbox.run(["cat", HOST_FILE])
    inside = await sandbox.run(["ps", "-A", "-o", "comm="])
    _expect(result.exit_code != 0 and len(inside.stdout.split()) < 10, (result, inside))


async def children_are_sealed(sandbox: Sandbox) -> None:
    status = (await sandbox.run(["grep", "-E", "^(NoNewPrivs|Seccomp):", "/proc/self/status"])).stdout.decode().split()
    _expect(status == ["NoNewPrivs:", "1", "Seccomp:", "2"], status)


async def environment_is_clean(sandbox: Sandbox) -> None:
    names = {line.split(b"=")[0].decode() for line in (await sandbox.run(["env"])).stdout.splitlines()}
    known = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PAGER", "GIT_PAGER", "MANPAGER"}
    _expect(names <= known, names - known)


CHECKS: tuple[Callable[[Sandbox], Awaitable[None]], ...] = (
    bash_works, shell_keeps_state, timeout_leaves_usable_shell, command_reads_input, cells_keep_state,
    cells_have_ipython, program_runs, file_is_edited, memory_is_limited, file_size_is_limited, output_is_limited,
)  # fmt: skip
ISOLATION_CHECKS = (children_are_sealed, network_is_off, host_is_invisible, environment_is_clean, processes_are_limited)


async def selfcheck(provider: SandboxProvider, image: str | None = None) -> list[Check]:
    """Runs all checks in one sandbox, then destroys it; a failing check does not keep the next from running."""
    sandboxes: list[Sandbox] = []

    async def create() -> None:
        sandboxes.append(await provider.create(SandboxSpec(owner="selfcheck", image=image, limits=LIMITS)))

    done = [await timed("create", create())]
    if not sandboxes:
        return done
    sandbox = sandboxes[0]
    # How a remote one is isolated is its server's choice: the contract asks it, and it is attacked there.
    checks = CHECKS if provider.kind in {"local", REMOTE} else CHECKS + ISOLATION_CHECKS
    done += [await timed(check.__name__.replace("_", " "), check(sandbox)) for check in checks]
    if provider.kind not in {"local", REMOTE}:
        done.append(await _way_of_writing(Path(sandbox.handle.directory).parents[1]))
        done.append(_hardness())
    done.append(await timed("close", sandbox.close()))
    done.append(await timed("closed is gone", _is_gone(provider, sandbox)))
    return done


async def _way_of_writing(state_dir: Path) -> Check:
    """Names the way in which directories of images are made writable here, and what kept it from a better one."""
    ways = Ways(state_dir)
    began = time.perf_counter()
    found = await asyncio.to_thread(ways.here)
    why = "; ".join(f"no {way}: {problem}" for way, problem in found.items() if problem)
    best = next(way for way, problem in found.items() if not problem)
    note = f"{best} ({why})" if why else str(best)
    return Check(name="writable directories", problem="", ms=(time.perf_counter() - began) * 1000, note=note)


def _hardness() -> Check:
    """Names what limits memory and CPU time of all that runs in a sandbox together."""
    began = time.perf_counter()
    groups = cgroup.delegated()
    note = f"hard: {groups.said}" if groups else f"soft: {cgroup.SOFT}"
    note += f"; {allotment.said(allotment.here(), os.environ)}"
    return Check(name="limits", problem="", ms=(time.perf_counter() - began) * 1000, note=note)


async def _is_gone(provider: SandboxProvider, sandbox: Sandbox) -> None:
    try:
        await provider.attach(sandbox.handle)
    except SandboxGone:
        _expect(label.read(Path(sandbox.handle.directory)) is None, "its directory is still there")
    else:
        raise _Failed("it can still be attached to")


async def timed(name: str, work: Awaitable[None]) -> Check:
    began = time.perf_counter()
    problem = ""
    try:
        await work
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return Check(name=name, problem=problem, ms=(time.perf_counter() - began) * 1000)
