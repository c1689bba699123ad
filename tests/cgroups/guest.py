"""Process of the virtual machine: makes groups, becomes a user, and lets sandboxes take more than they may have.

Each case is a child of its own: where it lives, and whom that belongs to, is what it tests. A line of JSON tells what
came of it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox.attack import limits
from sandbox.attack.surroundings import MODULES
from sandbox.isolators.bubblewrap import INTERPRETER, BubblewrapProvider
from sandbox.isolators.payload import joined, server_code
from sandbox.lifetime import cgroup, label
from sandbox.protocol import Sandbox, SandboxLimits, SandboxSpec

GROUPS = Path("/sys/fs/cgroup")
USER = 1000
LIMITS = SandboxLimits(memory_bytes=48 << 20, disk_bytes=16 << 20, open_files=1024)
PEAKS = ("memory.max_usage_in_bytes", "memory.peak")
TAKEN = {"bytes": 320 << 20}  # of which a third is more than sandbox, disk and server may have together
ATTACKS = {
    "hidden": ("memory_let_go", {**TAKEN, "count": 20}),
    "sockets": ("memory_in_sockets", {**TAKEN, "closed": True}),
    "forks": ("memory_of_many", {**TAKEN, "count": 16}),
}
CPU = "cpu"
PLACE = "/tmp/attack.py"


def tell(case: str, **found: Any) -> None:
    print(f"\nresult {json.dumps({'case': case, **found})}", flush=True)


def make_version_2() -> None:
    """A service's group that a user may divide, one with processes in it that systemd would mark, and one that is
    root's.
    """
    subprocess.run(["/bin/busybox", "mount", "-t", "cgroup2", "groups", str(GROUPS)], check=True)
    (GROUPS / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    for name in ("service", "service/workers", "scope"):
        own(GROUPS / name)
    os.setxattr(GROUPS / "scope", cgroup.DELEGATED, b"1")
    (GROUPS / "root").mkdir()


def make_version_1() -> None:
    subprocess.run(["/bin/busybox", "mount", "-t", "tmpfs", "groups", str(GROUPS)], check=True)
    for name in cgroup.WANTED:
        (GROUPS / name).mkdir()
        subprocess.run(["/bin/busybox", "mount", "-t", "cgroup", "-o", name, "groups", str(GROUPS / name)], check=True)
        own(GROUPS / name / "service")
        (GROUPS / name / "root").mkdir()


def own(group: Path) -> None:
    group.mkdir()
    for path in (group, *group.iterdir()):
        os.chown(path, USER, USER)


def case(name: str, groups: Sequence[Path], attacks: Sequence[str]) -> None:
    """In a process of its own, which is the user's."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        for group in groups:
            (group / "cgroup.procs").write_text("0")
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        asyncio.run(tried(name, attacks))
    except BaseException:
        tell(name, failed=traceback.format_exc())
    finally:
        os._exit(0)


async def tried(name: str, attacks: Sequence[str]) -> None:
    found = cgroup.delegated()
    controllers = list(found.directories) if found else []
    tell(name, version=found.version if found else 0, controllers=controllers)
    with tempfile.TemporaryDirectory() as directory:
        provider = BubblewrapProvider("guest", Path(directory))
        for attack in (each for each in attacks if each != CPU):
            sandbox = await provider.create(SandboxSpec(owner=name, limits=LIMITS))
            await attacked(f"{name} {attack}", sandbox, *ATTACKS[attack])
        if CPU in attacks:
            await shared(f"{name} {CPU}", provider)
        await provider.aclose()


async def attacked(name: str, sandbox: Sandbox, program: str, facts: Mapping[str, Any]) -> None:
    await sandbox.write_file(PLACE, joined(MODULES))
    result = await sandbox.run(["python3", PLACE, program, json.dumps(facts)], timeout_s=60)
    answers = (await sandbox.bash("echo on", timeout_s=60)).output.endswith("on\n")
    made = label.read(Path(sandbox.handle.directory))
    places = [Path(each) for each in made.cgroups] if made else []
    peaks = [place / file for place in places for file in PEAKS if (place / file).exists()]
    peak = int(peaks[0].read_text()) if peaks else 0
    await sandbox.close()
    left = [str(each) for each in places if each.exists()]
    done = b'"done": true' in result.stdout
    tell(name, done=done, exit_code=result.exit_code, answers=answers, peak_mib=peak >> 20, left=left)


async def shared(name: str, provider: BubblewrapProvider) -> None:
    """The part of the one CPU that a program of EVAL has beside a sandbox of RUN that spins in many sessions."""
    spinning = await provider.create(SandboxSpec(owner=name))
    scoring = await provider.create(SandboxSpec(owner=name, evaluates=True))
    for each in (spinning, scoring):
        await each.write_file(PLACE, joined(MODULES))
    alone, left = await limits.shares(spinning, scoring, PLACE)
    await spinning.close()
    await scoring.close()
    tell(name, share=round(left / alone, 2))


def main() -> None:
    """The cases of one version of control groups."""
    version, cases = sys.argv[1:]
    server_code(INTERPRETER)  # kept, so that no case need compile it again
    attacks = ["hidden"] if cases == "short" else [*ATTACKS, CPU]
    control = [each for each in attacks if each in {"hidden", CPU}]
    if version == "2":
        make_version_2()
        case("delegated", [GROUPS / "service/workers"], attacks)
        case("scope", [GROUPS / "scope"], [])
        case("not ours", [GROUPS / "root"], control)
    else:
        make_version_1()
        case("delegated", [GROUPS / name / "service" for name in cgroup.WANTED], attacks)
        case("not ours", [GROUPS / name / "root" for name in cgroup.WANTED], control)


if __name__ == "__main__":
    main()
