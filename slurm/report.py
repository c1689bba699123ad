"""`prorl-slurm status`: what Slurm says, what Redis says, and what follows where the two differ."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from prorl_mq.process.crews.division import divided
from prorl_mq.process.screen.tables import table
from prorl_mq.schema.messages import Stage
from prorl_mq.store.workers import WorkerStatus
from slurm.demand import Demand
from slurm.layout import job_name, logs
from slurm.scaling import named
from slurm.spec import Deployment, TaskKind
from slurm.supervisor.history import BAD_NODES, PastEvent
from slurm.tasks import Member, SlurmTask, task_of

HISTORY: Final = 20  # events in the text; the JSON has them all
WORKERS: Final = {TaskKind.NODE: 2, TaskKind.INIT: 1, TaskKind.RUN: 1, TaskKind.EVAL: 1}


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The same for programs. `redis` is null where it cannot be asked; `trouble` says why."""

    tasks: Sequence[SlurmTask]
    nodes: Mapping[str, str]
    redis: Demand | None
    trouble: str
    payloads: str
    notes: Sequence[str]
    history: Sequence[PastEvent]


def report(
    deployment: Deployment, tasks: Sequence[SlurmTask], nodes: Mapping[str, str], demand: Demand | None, trouble: str
) -> str:
    """The whole text. `demand` is None where Redis cannot be asked; `trouble` says why."""
    workers = _by_run(demand.workers if demand else ())
    rows = [_row(task, workers, deployment) for task in sorted(tasks, key=_order) if not _old(task, tasks)]
    head = ("task", "job", "state", "node", "left", "workers", "busy", "slots")
    parts = [table(head, rows) if rows else f"Slurm has no task of {deployment.name}"]
    if demand is None:
        parts.append(f"Redis cannot be reached: {trouble}{_no_redis(deployment, tasks)}")
    else:
        parts.append(_stages(demand))
    told = notes(deployment, tasks, nodes, demand)
    return "\n\n".join([*parts, *(["\n".join(told)] if told else [])])


def _no_redis(deployment: Deployment, tasks: Sequence[SlurmTask]) -> str:
    """Advice where Redis is a job of the deployment and none of it is there."""
    if "redis" not in named(deployment) or any(task.job == "redis" and task.alive for task in tasks):
        return ""
    return "\nno job of Redis runs or waits: `prorl-slurm submit redis` asks for one, and its data are kept"


def past(events: Sequence[PastEvent]) -> str:
    """A table of what was lost and what was done about it, the newest last; times in UTC."""
    rows = [(time.strftime("%m-%d %H:%M:%S", time.gmtime(each.at)), each.about, each.text) for each in events]
    more = f"; {len(rows) - HISTORY} older ones with --json" if len(rows) > HISTORY else ""
    return f"history (UTC{more})\n{table(('time', 'about', 'what'), rows[-HISTORY:])}"


def notes(
    deployment: Deployment, tasks: Sequence[SlurmTask], nodes: Mapping[str, str], demand: Demand | None
) -> list[str]:
    """A sentence for each thing that is not as it should be."""
    workers = _by_run(demand.workers if demand else ())
    told = []
    for task in sorted(tasks, key=_order):
        told += _of_task(deployment, task, workers, asked=demand is not None)
    told += _of_workers(tasks, workers)
    used = {node for task in tasks if task.working or task.ending for node in task.nodes}
    for node, state in nodes.items():
        if state.endswith("*"):
            then = "" if state.startswith("down") else " once it is down"
            told.append(f"node {node} does not answer ({state}): Slurm starts its tasks elsewhere{then}")
        elif state.startswith(BAD_NODES) and (node in used or state.startswith("down")):
            told.append(f"node {node} is {state}")
    return told


def held_back(task: SlurmTask) -> str:
    """A sentence about a task that waits for somebody to change something."""
    then = f"`scontrol release {task.id}` once its cause has gone, or `cancel {task.id}`"
    return f"{task.id} ({task.job}) will not start by itself ({task.reason or task.state}): {then}"


def _of_task(
    deployment: Deployment, task: SlurmTask, workers: Mapping[Member, Sequence[WorkerStatus]], *, asked: bool
) -> list[str]:
    array = deployment.arrays.get(task.job)
    log = f"{logs(deployment)}/{job_name(deployment, task.job)}-{task.id}.log"
    mine = [worker for member, found in workers.items() if member.task == task.id for worker in found]
    if task.failed:
        after = "its jobs continue elsewhere" if array else "`scale` or `submit` starts it again"
        return [f"{task.id} ({task.job}): {task.end}; {after}; its log is {log}"]
    if task.held:
        return [held_back(task)]
    if array is None or not asked:
        return []
    if task.working and not mine and task.run_s >= deployment.scale.start_s:
        return [f"{task.id} ({task.job}) has run for {task.run_s} s and no worker of it has been seen: see {log}"]
    parts = len(divided(array.slots)) if array.kind in {TaskKind.NODE, TaskKind.RUN} else 1
    expected = WORKERS[array.kind] - 1 + array.processes * parts
    if task.working and mine and len(mine) < expected and task.run_s >= deployment.scale.start_s:
        return [f"{task.id} ({task.job}) has {len(mine)} of its {expected} workers: see {log}"]
    return []


def _of_workers(tasks: Sequence[SlurmTask], workers: Mapping[Member, Sequence[WorkerStatus]]) -> list[str]:
    """Workers whose task Slurm sees otherwise: cut off with their node, or just dead."""
    told = []
    known = {task.id: task for task in tasks}
    newest = {member.task: 0 for member in workers}
    for member in workers:
        newest[member.task] = max(newest[member.task], member.restarts)
    for member, found in sorted(workers.items()):
        names = ", ".join(sorted(worker.name for worker in found))
        task = known.get(member.task)
        if member.restarts < newest[member.task]:
            told.append(
                f"{member.task} runs twice: {names} is alive though Slurm has given it up; its commits are fenced"
            )
        elif task is not None and task.waiting:
            told.append(
                f"{member.task} is to run again ({task.reason or task.state}), but {names} was alive a moment ago"
            )
        elif task is not None and not task.working and not task.ending:
            told.append(f"{member.task} has ended ({task.state}), but {names} was alive a moment ago")
    return told


def _row(
    task: SlurmTask, workers: Mapping[Member, Sequence[WorkerStatus]], deployment: Deployment
) -> tuple[object, ...]:
    """A server has no workers."""
    mine = [worker for member, found in workers.items() if member.task == task.id for worker in found]
    state = f"{task.state} ({task.reason})" if task.waiting and task.reason else task.state
    left = task.left if task.working else "-"
    head = (task.id, task.job, state, task.node or "-", left)
    if task.job not in deployment.arrays:
        return *head, "-", "-", "-"
    return *head, len(mine), sum(worker.busy for worker in mine), sum(worker.slots for worker in mine)


def _stages(demand: Demand) -> str:
    rows = []
    for stage in Stage:
        here = [worker for worker in demand.workers if worker.stage is stage]
        there = demand.stages[stage]
        busy, slots = sum(each.busy for each in here), sum(each.slots for each in here)
        rows.append((stage.value, there.queued, there.held, round(there.oldest_s), len(here), busy, slots))
    head = ("stage", "queued", "held", "oldest s", "workers", "busy", "slots")
    return f"{table(head, rows)}\nbacklog {demand.backlog} jobs, delayed {demand.delayed}"


def _by_run(workers: Sequence[WorkerStatus]) -> dict[Member, list[WorkerStatus]]:
    found: dict[Member, list[WorkerStatus]] = {}
    for worker in workers:
        member = task_of(worker.name)
        if member is not None:
            found.setdefault(member, []).append(worker)
    return found


def _order(task: SlurmTask) -> tuple[int, ...]:
    return tuple(int(part) for part in task.id.split("_") if part.isdecimal())


def _old(task: SlurmTask, tasks: Sequence[SlurmTask]) -> bool:
    """Ended well while others of its job are there: not worth a line."""
    others = any(each.job == task.job and (each.working or each.waiting) for each in tasks)
    return others and task.state in {"COMPLETED", "CANCELLED"}
