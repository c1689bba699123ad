"""Limits of this process and all that it starts together, sandboxes included: those of the groups that it is in.

A job step of Slurm is such a group where the cluster has `TaskPlugin=task/cgroup` with `ConstrainRAMSpace` and
`ConstrainCores`. Elsewhere what the job has asked for is a number in Slurm's books.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from sandbox.lifetime.cgroup import below, mounts

UNLIMITED = 1 << 60  # version 1 has a number for it, which depends on the size of a page
FILES = {"cgroup2": ("memory.max", "cpu.max"), "cgroup": ("memory.limit_in_bytes", "cpu.cfs_quota_us")}
MIB = 1 << 20


class Allotment(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the kernel enforces for this process and its children; None: nothing below the whole machine."""

    memory_bytes: int | None
    memory_group: str
    cpus: float | None


def here() -> Allotment:
    """The limits of this process."""
    cgroup, mountinfo = Path("/proc/self/cgroup").read_text("utf-8"), Path("/proc/self/mountinfo").read_text("utf-8")
    return of(cgroup, mountinfo, affinity=len(os.sched_getaffinity(0)), machine=os.cpu_count() or 1)


def of(cgroup: str, mountinfo: str, *, affinity: int, machine: int) -> Allotment:
    """The limits that a process's files `cgroup` and `mountinfo` lead to. `affinity`: the CPUs that it may run on."""
    memory = [
        (held, str(group))
        for group, (file, _) in _groups(cgroup, mountinfo, "memory")
        if (held := _number(group / file)) is not None and held < UNLIMITED
    ]
    quotas = [
        quota for group, (_, file) in _groups(cgroup, mountinfo, "cpu") if (quota := _cpus(group / file)) is not None
    ]
    lowest, place = min(memory, default=(None, ""))
    cpus = min([*quotas, affinity])
    return Allotment(memory_bytes=lowest, memory_group=place, cpus=cpus if cpus < machine else None)


def _groups(cgroup: str, mountinfo: str, controller: str) -> Iterator[tuple[Path, tuple[str, str]]]:
    """The groups of a process that a controller holds, up to the topmost that can be seen, and their files' names."""
    for line in cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        kind = "cgroup2" if number == "0" and not controllers else "cgroup"
        for root, mounted, mounted_kind, options in mounts(mountinfo):
            inside = below(path, root)
            wanted = kind == "cgroup2" or (controller in controllers.split(",") and controller in options)
            if mounted_kind == kind and wanted and inside is not None:
                own = Path(mounted, inside)
                yield from ((each, FILES[kind]) for each in (own, *own.parents) if each.is_relative_to(mounted))


def _number(file: Path) -> int | None:
    """None for a file that is not there, and for `max`."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text("utf-8"))
    return None


def _cpus(file: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, *period = file.read_text("utf-8").split()
        of_us = int(period[0]) if period else _number(file.with_name("cpu.cfs_period_us")) or 0
        return int(quota) / of_us if int(quota) > 0 and of_us else None
    return None


def said(found: Allotment, environ: Mapping[str, str]) -> str:
    """A sentence for people. In a job of Slurm's it says whether the kernel holds what the job has asked for."""
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return f"this process and its sandboxes together have {_memory(found)} and {_processors(found)}"
    asked = environ.get("SLURM_MEM_PER_NODE", "")
    told = f"job {job}: the worker and its sandboxes together have {_memory(found)} and {_processors(found)}"
    if asked.isdigit() and not (found.memory_bytes and found.memory_bytes <= int(asked) * MIB * 2):
        told += (
            f"; nothing holds them to the {asked} MiB that the job asked for: have the cluster constrain it "
            "(task/cgroup, ConstrainRAMSpace=yes), or count the sandboxes' own limits times the slots into it"
        )
    return told


def _memory(found: Allotment) -> str:
    if found.memory_bytes is None:
        return "the machine's memory"
    return f"{found.memory_bytes // MIB} MiB of memory (enforced by {found.memory_group})"


def _processors(found: Allotment) -> str:
    return "all CPUs" if found.cpus is None else f"{found.cpus:g} CPUs (enforced)"
