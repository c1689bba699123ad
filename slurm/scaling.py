"""The number of tasks that an array should have: a pure decision from demand, Slurm's tasks, and earlier observations.

Growing is quick and waits for nothing that is already on its way; shrinking waits until the need has been low for
`down_s`, and takes tasks that have not started before those that have.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from prorl_mq.schema.messages import Stage
from prorl_mq.store.workers import WorkerStatus
from slurm.demand import Demand
from slurm.spec import WATCH, Array, Deployment, Job, TaskKind
from slurm.tasks import SlurmTask, ahead_s, clock_s, limit_s, task_of

FAILURES = 3  # tasks that ended badly, with no worker alive, until an array is asked for no more; so of a server,
YOUNG_S = 120  # whose tasks have ended so soon, with all their attempts to start
SPARE = 2  # times its count are there of a server at most: each one, and its successor


class ScalingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Action on one array, and the reason."""

    add: int = 0
    withdraw: tuple[str, ...] = ()  # tasks that wait in Slurm
    drain: tuple[str, ...] = ()  # tasks that run
    why: str = ""


Memory = dict[str, float]  # array → since when it has had more tasks than it needs


def decide(
    deployment: Deployment, tasks: Sequence[SlurmTask], demand: Demand, memory: Memory, now_s: float
) -> dict[str, ScalingPlan]:
    """A plan for each array. `memory` is kept between calls; losing it delays shrinking by `down_s`."""
    plans = {}
    left = {kind: jobs(demand, kind) for kind in TaskKind}
    for name, array in deployment.arrays.items():
        room = array.slots * array.processes
        most = array.most or array.count
        wanted = max(array.least, min(most, math.ceil(left[array.kind] / room)))
        left[array.kind] = max(0, left[array.kind] - wanted * room)
        mine = [task for task in tasks if task.job == name]
        plans[name] = _plan(deployment, name, array, mine, demand, memory, wanted, now_s)
    return plans


def servers(deployment: Deployment, tasks: Sequence[SlurmTask]) -> dict[str, int]:
    """Tasks of Redis, API and each backend to ask for, as numbers: in place of those that have ended, and of those that
    soon end by their time limit, so that the next one is there before. There are never more than twice as many as
    there should be, whatever limits Slurm gives them.
    """
    lacking, fail = {}, failing(deployment, tasks)
    for name, (job, count) in named(deployment).items():
        there = [task for task in tasks if task.job == name and (task.waiting or task.working)]
        lasting = sum(task.coming or _lasts(task, job) for task in there)
        add = min(count - lasting, SPARE * count - len(there))
        if add > 0 and name not in fail:
            lacking[name] = add
    return lacking


def failing(deployment: Deployment, tasks: Sequence[SlurmTask]) -> set[str]:
    """Servers that have failed at their start again and again, or that Slurm holds back, and of which none runs: until
    Slurm has forgotten these tasks they are not asked for.
    """
    found = set()
    counts = {name: count for name, (_, count) in named(deployment).items()} | {WATCH: 1}
    for name, count in counts.items():
        mine = [task for task in tasks if task.job == name]
        failed = sum(task.held or (task.broken and task.run_s < YOUNG_S) for task in mine)
        if failed >= FAILURES * count and not any(task.working for task in mine):
            found.add(name)
    return found


def named(deployment: Deployment) -> dict[str, tuple[Job, int]]:
    """Servers by name, each with how many of it there should be."""
    found: dict[str, tuple[Job, int]] = {}
    if deployment.redis is not None and deployment.redis.url is None:
        found["redis"] = deployment.redis, 1
    if deployment.api is not None:
        found["api"] = deployment.api, 1
    return found | {name: (backend, backend.count) for name, backend in deployment.backends.items()}


def _lasts(task: SlurmTask, job: Job) -> bool:
    """It runs, and its limit is not near: that of the spec, or the shorter one that Slurm has given it."""
    left_s = clock_s(task.left)
    return task.working and (left_s is None or left_s > ahead_s(min(limit_s(job.time), task.run_s + left_s)))


def jobs(demand: Demand, kind: TaskKind) -> int:
    """Jobs that tasks of a kind have before them."""
    init = demand.backlog + _all(demand, Stage.INIT) + demand.delayed
    match kind:
        case TaskKind.NODE:
            return init + _all(demand, Stage.RUN)
        case TaskKind.INIT:
            return init
        case TaskKind.RUN:
            return _all(demand, Stage.RUN)
        case TaskKind.EVAL:
            return _all(demand, Stage.EVAL)


def _all(demand: Demand, stage: Stage) -> int:
    return demand.stages[stage].queued + demand.stages[stage].held


def _plan(
    deployment: Deployment,
    name: str,
    array: Array,
    mine: Sequence[SlurmTask],
    demand: Demand,
    memory: Memory,
    wanted: int,
    now_s: float,
) -> ScalingPlan:
    scale = deployment.scale
    workers = _by_task(demand.workers)
    waiting = [task.id for task in mine if task.coming]
    working = [task for task in mine if task.working and not _drains(task, workers)]
    have = len(waiting) + len(working)
    if wanted <= have:
        since = memory.setdefault(name, now_s) if wanted < have else None
        if since is None:
            memory.pop(name, None)
            return ScalingPlan()
        if now_s - since < scale.down_s:
            return ScalingPlan(why=f"{have - wanted} more than needed for {now_s - since:.0f} s")
        return _less(min(scale.step, have - wanted), waiting, working, workers)
    memory.pop(name, None)
    if why := _refuses(mine, workers, wanted):
        return ScalingPlan(why=f"{why}; no more are requested")
    stage = {TaskKind.NODE: Stage.INIT, TaskKind.INIT: Stage.INIT, TaskKind.RUN: Stage.RUN, TaskKind.EVAL: Stage.EVAL}[
        array.kind
    ]
    oldest_s = demand.stages[stage].oldest_s
    if have > array.least and oldest_s < scale.up_s:
        return ScalingPlan(why=f"the oldest job has waited for {oldest_s:.0f} s only")
    return ScalingPlan(add=min(scale.step, wanted - have), why=f"{wanted} needed, {have} running or on their way")


def _refuses(mine: Sequence[SlurmTask], workers: Mapping[str, Sequence[WorkerStatus]], wanted: int) -> str:
    """Why further tasks would be of no use; empty where they are."""
    failed, held = sum(task.broken for task in mine), sum(task.held for task in mine)
    if failed >= FAILURES and not any(workers.get(task.id) for task in mine):
        return f"{failed} of its tasks failed and no worker is alive: see the logs"
    return f"Slurm holds {held} of its tasks back: see `status`" if held >= wanted else ""


def _less(
    count: int, waiting: Sequence[str], working: Sequence[SlurmTask], workers: Mapping[str, Sequence[WorkerStatus]]
) -> ScalingPlan:
    """The last ones that wait; then those with the least to finish."""
    withdrawn = tuple(list(waiting)[::-1][:count])
    idlest = sorted(working, key=lambda task: (sum(each.busy for each in workers.get(task.id, ())), task.run_s))
    drained = tuple(task.id for task in idlest[: count - len(withdrawn)])
    return ScalingPlan(withdraw=withdrawn, drain=drained, why=f"{count} more than needed")


def _drains(task: SlurmTask, workers: Mapping[str, Sequence[WorkerStatus]]) -> bool:
    """Its workers are there, and none takes a job any more."""
    mine = workers.get(task.id, ())
    return bool(mine) and not any(worker.slots for worker in mine)


def _by_task(workers: Sequence[WorkerStatus]) -> dict[str, list[WorkerStatus]]:
    found: dict[str, list[WorkerStatus]] = {}
    for worker in workers:
        member = task_of(worker.name)
        if member is not None:
            found.setdefault(member.task, []).append(worker)
    return found
