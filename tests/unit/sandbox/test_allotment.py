"""What holds a worker and its sandboxes together: read from made-up groups of both versions, as Slurm leaves them."""

from pathlib import Path

import pytest

from sandbox.lifetime import allotment
from sandbox.lifetime.allotment import Allotment

JOB = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "512"}
MIB = 1 << 20


def version_1(root: Path, **limits: int) -> Allotment:
    """Slurm's groups of a batch step, by name below the mount: `job` has what the job asked for."""
    own = root / "memory/slurm_n1/uid_0/job_7/step_batch/task_0"
    own.mkdir(parents=True)
    for group in (own, *own.parents[:5]):
        said = limits.get(group.name.partition("_")[0], (1 << 63) - 4096)
        (group / "memory.limit_in_bytes").write_text(f"{said}\n")
    mounts = (
        f"35 31 0:32 / {root}/memory rw - cgroup cgroup rw,memory\n32 31 0:29 / {root}/cpu rw - cgroup cgroup rw,cpu\n"
    )
    return allotment.of(
        "4:memory:/slurm_n1/uid_0/job_7/step_batch/task_0\n1:cpu:/\n0::/\n", mounts, affinity=4, machine=8
    )


def version_2(root: Path, *, memory: str, cpu: str, affinity: int = 8) -> Allotment:
    own = root / "system.slice/slurmstepd.scope/job_7/step_0"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text(f"{memory}\n")
    (own.parent / "cpu.max").write_text(f"{cpu}\n")
    path = "/system.slice/slurmstepd.scope/job_7/step_0"
    mounts = f"30 23 0:26 / {root} rw - cgroup2 cgroup2 rw\n"
    return allotment.of(f"0::{path}\n", mounts, affinity=affinity, machine=8)


def test_a_job_whose_memory_slurm_enforces_is_told_so(tmp_path: Path) -> None:
    found = version_1(tmp_path, job=512 * MIB, slurm=24_000 * MIB)
    assert found.memory_bytes == 512 * MIB
    said = allotment.said(found, JOB)
    assert f"512 MiB of memory (enforced by {tmp_path}/memory/slurm_n1/uid_0/job_7) and 4 CPUs (enforced)" in said
    assert "nothing holds" not in said


@pytest.mark.parametrize("limits", [{}, {"job": 24_000 * MIB}], ids=["no group", "the machine's size alone"])
def test_a_job_whose_memory_nothing_enforces_is_told_so(tmp_path: Path, limits: dict[str, int]) -> None:
    said = allotment.said(version_1(tmp_path, **limits), JOB)
    assert "nothing holds them to the 512 MiB that the job asked for" in said
    assert "ConstrainRAMSpace" in said


def test_groups_of_version_2_hold_by_the_lowest_of_those_above(tmp_path: Path) -> None:
    found = version_2(tmp_path, memory=str(512 * MIB), cpu="250000 100000")
    assert found == Allotment(
        memory_bytes=512 * MIB, memory_group=f"{tmp_path}/system.slice/slurmstepd.scope/job_7", cpus=2.5
    )


@pytest.mark.parametrize(("affinity", "cpus"), [(8, None), (3, 3)])
def test_the_cpus_are_those_that_it_may_run_on(tmp_path: Path, affinity: int, cpus: int | None) -> None:
    found = version_2(tmp_path, memory="max", cpu="max 100000", affinity=affinity)
    assert found == Allotment(memory_bytes=None, memory_group="", cpus=cpus)
    assert "the machine's memory" in allotment.said(found, {})
