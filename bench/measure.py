"""CPU time of process trees, machine load and what the machine is, all read from /proc."""

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class MachineTicks(msgspec.Struct, frozen=True, kw_only=True):
    """Ticks of all cores since boot."""

    total: int
    idle: int
    stolen: int


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """How busy all cores were between two readings. Little idle time means that the machine was the limit."""

    idle_pct: float
    stolen_pct: float


def process_tree(pid: int) -> list[int]:
    """The process and its living descendants, parents first."""
    pids = [pid]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                pids += process_tree(int(child))
    return pids


def ticks_of_stat(stat: str) -> int:
    """User and system ticks in a line of /proc/PID/stat, with those of dead children that were waited for.

    The process name may hold spaces and brackets, so the fields are counted from its last bracket.

    >>> ticks_of_stat("7 (a (b) c) S 1 7 7 0 -1 4194304 900 0 3 0 10 20 3 4 20 0 1 0")
    37
    """
    fields = stat.rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15]))


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of process trees, dead children that were waited for included. Resolution: 10 ms a process."""
    total = 0
    for root in pids:
        for pid in process_tree(root):
            with contextlib.suppress(OSError):
                total += ticks_of_stat(Path(f"/proc/{pid}/stat").read_text())
    return total / TICKS_PER_S


def fine_cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of the living threads of process trees, in nanosecond steps: idle processes need them."""
    total_ns = 0
    for root in pids:
        for pid in process_tree(root):
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of process trees; shared pages count once a process."""
    total = 0
    for root in pids:
        for pid in process_tree(root):
            with contextlib.suppress(OSError, IndexError):
                total += int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) << 10
    return total


def machine_ticks() -> MachineTicks:
    with Path("/proc/stat").open() as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return MachineTicks(total=sum(fields), idle=fields[3], stolen=fields[7])


def machine_use(before: MachineTicks, after: MachineTicks) -> MachineUse:
    """What the cores did between two readings.

    >>> machine_use(MachineTicks(total=0, idle=0, stolen=0), MachineTicks(total=200, idle=50, stolen=1))
    MachineUse(idle_pct=25.0, stolen_pct=0.5)
    """
    total = max(1, after.total - before.total)
    return MachineUse(
        idle_pct=round(100 * (after.idle - before.idle) / total, 1),
        stolen_pct=round(100 * (after.stolen - before.stolen) / total, 1),
    )


def load() -> float:
    """The 1-minute load average: above the number of cores, others were at work too."""
    return round(os.getloadavg()[0], 2)


def describe_machine() -> dict[str, str | int | float]:
    """What a reader needs to judge absolute figures."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "load_at_start": load(),
    }


def versions(packages: Sequence[str]) -> Mapping[str, str]:
    """Installed versions of packages of this interpreter; absent ones are left out."""
    found: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def printed(*argv: str) -> str:
    """The first line of a program's output; empty where it does not run."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError, IndexError):
        found = subprocess.run(argv, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return found.stdout.splitlines()[0]
    return ""


def code() -> str:
    """The commit, or the tag, of this tree."""
    return printed("git", "describe", "--always", "--dirty")


def percentile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of the values lies (nearest rank).

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([4.0, 1.0, 3.0, 2.0], 0.99)
    (2.0, 4.0)
    """
    if not values:
        raise ValueError("no percentile of no values: the measurement gave nothing")
    ordered = sorted(values)
    rank = -(-len(ordered) * q // 1)  # ceiling
    return ordered[min(len(ordered), max(1, int(rank))) - 1]
