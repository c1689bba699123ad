"""Slurm's account of this process: its task, how often that was started again, its node, and when it must end."""

from collections.abc import Mapping

import msgspec


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a Slurm job. `task` is `ARRAY_TASK`, or the job's id where there is no array."""

    task: str
    restarts: int = 0
    ends_at_ms: int | None = None

    def worker_name(self, stage: str, node: str, pid: int) -> str:
        """Unlike every other process: a task that runs twice at once differs in its restarts.

        >>> Allocation(task="17_3", restarts=1).worker_name("run", "n2", 4711)
        'run-17_3.1@n2-4711'
        """
        return f"{stage}-{self.task}.{self.restarts}@{node}-{pid}"


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """None outside of Slurm. The id of the job itself is no help: an array's last task has that of the array."""
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    if not job:
        return None
    index = environ.get("SLURM_ARRAY_TASK_ID")
    ends_at_s = environ.get("PRORL_ENDS_AT") or environ.get("SLURM_JOB_END_TIME")
    return Allocation(
        task=f"{job}_{index}" if index else job,
        restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
        ends_at_ms=int(ends_at_s) * 1000 if ends_at_s else None,
    )
