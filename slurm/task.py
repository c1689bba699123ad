"""A task of an array: the workers of one kind on one node, drained together when Slurm warns.

A task of a single worker becomes that worker; a node task stays beside its INIT and RUN workers and the node's sandbox
keeper. When they have gone it sees to it that no sandbox of theirs is left on the node.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.children import Program
from prorl_mq.process.crews.crew import Crew, Stopping, say
from prorl_mq.settings import Setting, add
from slurm import node_state
from slurm.layout import role_file
from slurm.spec import TaskKind
from slurm.tasks import clock_s

SETTINGS: Final = (
    Setting("--kind", "the stages whose workers it runs", type=TaskKind, required=True, choices=tuple(TaskKind)),
    Setting("--rendezvous", "directory with a file for each role", type=Path, required=True),
    Setting("--processes", "worker processes of each stage except INIT", type=int, default=1),
    Setting("--slots", "jobs at a time in each", type=int, default=8),
    Setting("--sandbox", "auto, apptainer, bubblewrap, local, remote or none", default="bubblewrap"),
    Setting("--grace-s", "how long jobs may continue after the warning", type=float, default=30.0, unit="s"),
    Setting("--idle-exit-s", "drain after so long without a job", type=float, unit="s"),
    Setting("options", "of the workers, after --", nargs="*"),
)
STAGES: Final = {
    TaskKind.NODE: ("init", "run"),
    TaskKind.INIT: ("init",),
    TaskKind.RUN: ("run",),
    TaskKind.EVAL: ("eval",),
}
INIT_GRACE_S: Final = 2.0  # a node's lane ends with its RUN workers: what INIT has not finished starts elsewhere
LEAVE_S: Final = 15
ASK_S: Final = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 drained, 75 drained and asks to be run again, 1 a worker could not be kept alive, 2 misused."""
    given = parse(argv)
    try:
        node_state.prepare(Path(os.environ["PRORL_STATE"]), os.getuid())
    except ConfigurationError as error:
        say(f"slurm task: {error}")
        return 2
    job = os.environ.get("SLURM_JOB_ID", "")
    if job and node_state.of_one_job(Path(os.environ["PRORL_STATE"]), job, Path("/proc/self/mountinfo").read_text()):
        # Sandboxes that no other task of the node sees: a lane of its own.
        os.environ.setdefault("PRORL_NODE", f"{os.environ.get('SLURMD_NODENAME', socket.gethostname())}-job{job}")
    ends_at = end_of_task()
    if ends_at is not None:
        os.environ["PRORL_ENDS_AT"] = str(ends_at)
    workers = programs(given)
    if len(workers) == 1:
        program = workers[0]
        os.execve(program.argv[0], list(program.argv), {**os.environ, **program.env})  # noqa: S606 - it becomes the task
    return asyncio.run(serve(given, workers))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slurm.task", description=__doc__)
    add(parser, SETTINGS, {})
    return parser.parse_args(argv)


def programs(given: argparse.Namespace) -> list[Program]:
    """The workers of a task. INIT has no idle exit in a node task: it ends with its RUN workers."""
    made = []
    for stage in STAGES[given.kind]:
        beside_run = given.kind is TaskKind.NODE and stage == "init"
        argv = [sys.executable, "-P", "-m", "workers", "--stage", stage, "--slots", str(given.slots)]
        argv += ["--sandbox", given.sandbox]
        argv += ["--grace-ms", str(round(1000 * (INIT_GRACE_S if beside_run else given.grace_s)))]
        if given.idle_exit_s is not None and not beside_run:
            argv += ["--idle-exit-ms", str(round(1000 * given.idle_exit_s))]
        role = "eval" if stage == "eval" else "worker"
        env = {"PRORL_RENDEZVOUS": str(role_file(given.rendezvous, role))}
        count = 1 if beside_run else given.processes
        made += [Program(name=f"{stage} worker", argv=[*argv, *given.options], env=env)] * count
    return made


def keepers(given: argparse.Namespace) -> list[Program]:
    """The node's sandbox keeper; where another task has started one already, this one waits to take its place."""
    if given.sandbox == "none" or given.kind is not TaskKind.NODE:
        return []
    argv = [sys.executable, "-P", "-m", "workers.node.keeper", "--sandbox", given.sandbox]
    env = {"PRORL_RENDEZVOUS": str(role_file(given.rendezvous, "worker"))}
    return [Program(name="sandbox keeper", argv=argv, env=env)]


async def serve(given: argparse.Namespace, workers: Sequence[Program]) -> int:
    """Runs the workers to their end, and then what destroys the sandboxes that they left."""
    with Stopping() as stopping:
        state_dir = None if given.sandbox == "none" else Path(os.environ["PRORL_STATE"])
        crew = Crew(workers, grace_s=given.grace_s + 10, beside=keepers(given), state_dir=state_dir)
        code = await crew.run(stopping)
        if given.sandbox != "none":
            leave = [sys.executable, "-P", "-m", "workers.node.leaving", "--within-s", str(LEAVE_S)]
            process = await asyncio.create_subprocess_exec(*leave, env={**os.environ, **workers[0].env})
            await process.wait()
    return code


def end_of_task() -> int | None:
    """When Slurm ends this task, in seconds since the epoch; None if there is no limit, or it is unknown."""
    if known := os.environ.get("SLURM_JOB_END_TIME"):
        return int(known)
    job = os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID"))
    if job is None:
        return None
    index = os.environ.get("SLURM_ARRAY_TASK_ID")
    ask = ["squeue", "-h", "-j", f"{job}_{index}" if index else job, "-o", "%L"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=ASK_S, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        say(f"squeue does not report when this task ends, so jobs are claimed until its end: {error}")
        return None
    left_s = clock_s(answer)
    return None if left_s is None else int(time.time()) + left_s


if __name__ == "__main__":
    sys.exit(main())
