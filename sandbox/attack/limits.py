"""Attacks on the limits of sandboxes: memory, processes, files, disk, output and CPU time.

Each has a new sandbox with narrow limits, and is first tried in one with wide limits, where it must succeed. For CPU
time the trial before is on this machine without sandboxes.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from sandbox.errors import SandboxError, SandboxOverrun
from sandbox.lifetime import cgroup
from sandbox.protocol import Sandbox, SandboxLimits

MIB: Final = 1 << 20
NARROW: Final = SandboxLimits(
    memory_bytes=96 * MIB, disk_bytes=16 * MIB, file_bytes=8 * MIB, processes=64, open_files=1024, output_bytes=64 << 10
)
WIDE: Final = SandboxLimits(
    memory_bytes=2048 * MIB, disk_bytes=256 * MIB, file_bytes=128 * MIB, processes=1024, open_files=8192,
    output_bytes=4 * MIB,
)  # fmt: skip
SPINNING: Final = replace(WIDE, memory_bytes=1024 * MIB)
MEMORY: Final = {"bytes": 3 * NARROW.memory_bytes}
OUTPUT: Final = "head -c 4M /dev/zero"
SPINNERS: Final = 8  # for each CPU, but
MOST_SPINNERS: Final = 96
KILLED: Final = (137, -9)
ATTACKS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "memory-one": ("memory_of_one", MEMORY),
    "memory-many": ("memory_of_many", {**MEMORY, "count": 12}),
    "memory-shared": ("memory_shared", MEMORY),
    "memory-let-go": ("memory_let_go", {**MEMORY, "count": 12}),
    "memory-sockets": ("memory_in_sockets", {**MEMORY, "closed": False}),
    "memory-datagrams": ("memory_in_sockets", {**MEMORY, "closed": True}),
    "memory-page-tables": ("memory_in_page_tables", MEMORY),
    "processes": ("many_processes", {"count": 4 * NARROW.processes}),
    "threads": ("many_threads", {"count": 4 * NARROW.processes}),
    "open-files": ("many_open_files", {"count": 2 * NARROW.open_files}),
    "file-size": ("large_file", {"bytes": 3 * NARROW.file_bytes}),
    "disk-files": ("many_files", {"bytes": 3 * NARROW.disk_bytes}),
    "disk-empty-files": ("many_empty_files", {"count": 3 * NARROW.disk_bytes // 1024}),
}
SOFT: Final = (
    "soft: no control groups here, so the watchdog sees only what processes have in memory, and CPU time is "
    "shared by choice of CPUs; `--sandbox untrusted` starts no sandbox on this machine"
)


def held_by(groups: cgroup.ControlGroups | None, program: str) -> bool:
    """True where control groups hold what an attack takes."""
    return groups is not None and (program != "starve" or "cpu" in groups.directories)


def spinners() -> dict[str, Any]:
    return {"count": min(MOST_SPINNERS, SPINNERS * len(os.sched_getaffinity(0)))}


async def answers(sandbox: Sandbox) -> bool:
    """True if the sandbox still serves its owner after an attack."""
    try:
        return (await sandbox.run(["echo", "on"], timeout_s=20)).stdout == b"on\n"
    except SandboxOverrun:
        return True  # its memory is gone with it, and the agent has it on its account
    except SandboxError:
        return False


async def flood(sandbox: Sandbox) -> str:
    """Says how much was kept of a program's output that is too long; empty where that is no more than the limit."""
    result = await sandbox.run(["sh", "-c", OUTPUT])
    return f"{len(result.stdout)} bytes of output were kept" if len(result.stdout) > 4 * NARROW.output_bytes else ""


async def share(sandbox: Sandbox, place: str) -> float:
    """The part of a CPU that a program has."""
    result = await sandbox.run(["python3", place, "spin", "{}"])
    return float(json.loads(result.stdout)["said"])


async def shares(spinning: Sandbox, scoring: Sandbox, place: str) -> tuple[float, float]:
    """The part of a CPU that a program of EVAL has, alone and beside a sandbox that spins in many sessions."""
    alone = await share(scoring, place)
    await spinning.run(["python3", place, "spinners", json.dumps(spinners())])
    return alone, max([await share(scoring, place) for _ in range(2)])  # other work on the machine comes and goes


async def starved(spinning: Sandbox, scoring: Sandbox, place: str) -> str:
    """Says what such a program has left; empty where that is enough."""
    alone, left = await shares(spinning, scoring, place)
    return f"{left:.2f} of a CPU, of {alone:.2f}" if left <= alone / 2 else ""
