"""From a deployment to the scripts that Slurm runs: a pure function of the spec.

Each script ends by becoming its program (`exec`), so that Slurm's signal to the batch process (`--signal=B:`) reaches
it: a shell in between would die of the signal and leave the program behind.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from slurm.layout import job_name, logs, node_directory, rendezvous
from slurm.spec import WATCH, ApiJob, Array, AtSignal, Backend, Deployment, Job, RedisJob, WatchJob
from slurm.tasks import ahead_s, limit_s

SIGNALS: Final = {AtSignal.EXIT: "TERM", AtSignal.REQUEUE: "USR1"}
SPARE_S: Final = 30  # of the warning time is left for giving back what did not finish
SERVER_WARN_S: Final = 60
HEAD: Final = "#!/bin/bash"


class BatchScript(msgspec.Struct, frozen=True, kw_only=True):
    """A batch script. `name` is the job's name in the spec."""

    name: str
    text: str


def scripts(deployment: Deployment) -> list[BatchScript]:
    """Every job of a deployment, in the order in which they are submitted."""
    made = []
    if deployment.redis is not None and deployment.redis.url is None:
        redis = deployment.redis
        made.append(_server(deployment, "redis", redis, _redis(deployment, redis)))
    if deployment.api is not None:
        made.append(_server(deployment, "api", deployment.api, _api(deployment, deployment.api)))
    made += [backend_script(deployment, name, backend.count) for name, backend in deployment.backends.items()]
    made += [array_script(deployment, name, array.count) for name, array in deployment.arrays.items()]
    return [*made, *([watch_script(deployment)] if deployment.watch is not None else [])]


def backend_script(deployment: Deployment, name: str, count: int) -> BatchScript:
    """`count` backends of one kind, of which `scale` asks for those that are lacking."""
    backend = deployment.backends[name]
    return _server(deployment, name, backend, _backend(deployment, backend), array=f"0-{count - 1}")


def watch_script(deployment: Deployment, after: str = "") -> BatchScript:
    """A supervisor; the successor of the job `after` begins when that one ends, or shortly before its limit."""
    job = deployment.watch or WatchJob()
    early = ""
    if (limit := limit_s(job.time)) != math.inf:
        early = f"after:{after}+{max(1, int((limit - ahead_s(limit)) / 60))}?"
    options = {"dependency": f"{early}afterany:{after}"} if after else {}
    return _server(deployment, WATCH, job, ["-m", "slurm.supervisor.task", "--shared", deployment.shared], **options)


def array_script(deployment: Deployment, name: str, count: int) -> BatchScript:
    """An array of `count` tasks. `scale` asks for further ones so, since an array cannot grow."""
    array = deployment.arrays[name]
    throttle = f"%{array.throttle}" if array.throttle else ""
    options = {
        "array": f"0-{count - 1}{throttle}",
        "signal": f"B:{SIGNALS[array.at_signal]}@{array.warn_s}",
    }
    return BatchScript(name=name, text=_text(deployment, name, array, options, _task(deployment, array)))


def _server(deployment: Deployment, name: str, job: Job, program: Sequence[str], **options: str) -> BatchScript:
    signal = "USR1" if job is deployment.redis else "TERM"  # Redis serves until another can take over
    options["signal"] = f"B:{signal}@{round(min(SERVER_WARN_S, limit_s(job.time) / 4))}"
    return BatchScript(name=name, text=_text(deployment, name, job, options, program))


def _text(deployment: Deployment, name: str, job: Job, options: Mapping[str, str], program: Sequence[str]) -> str:
    nodes = job.nodes if isinstance(job, Backend) else 1
    output = "%x-%A_%a.log" if "array" in options else "%x-%j.log"
    said = {
        "job-name": job_name(deployment, name),
        **options,
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
        "nodes": str(nodes) if nodes > 1 else None,
        "ntasks": str(nodes),
        "ntasks-per-node": "1" if nodes > 1 else None,
        "cpus-per-task": str(job.cpus),
        "mem": job.memory,
        "gres": job.gres,
        "output": f"{logs(deployment)}/{output}",
        "open-mode": "append",  # else a task that runs again would empty its own log
    }
    lines = [HEAD, *(f"#SBATCH --{option}={shlex.quote(value)}" for option, value in said.items() if value is not None)]
    again = "no-requeue" if isinstance(job, WatchJob) else "requeue"  # the chain's next one is there already
    lines += [f"#SBATCH --{again}", *(f"#SBATCH {line}" for line in job.sbatch), "set -e", *job.setup]
    lines += _environment(deployment)
    command = shlex.join([deployment.python or "python3", *program])
    if job.image:
        lines.append(f'mkdir -p "{deployment.scratch}"')
        binds = f'--bind {shlex.quote(deployment.shared)} --bind "{deployment.scratch}"'
        command = f"apptainer exec {binds} {shlex.quote(job.image)} {command}"
    return "\n".join([*lines, f"exec {command}", ""])


def _environment(deployment: Deployment) -> Iterator[str]:
    """The state lies on the node, in one place for all tasks of the deployment there: they share its sandboxes."""
    yield f"export PRORL_NAMESPACE={shlex.quote(deployment.namespace)}"
    yield f"export PRORL_LEASE_MS={deployment.lease_ms}"
    tools = shlex.quote(f"{deployment.shared}/tools")
    yield f'if [ -z "${{PRORL_SANDBOX_TOOLS:-}}" ] && [ -d {tools} ]; then export PRORL_SANDBOX_TOOLS={tools}; fi'
    place = node_directory(deployment.name, deployment.shared)
    yield f'export PRORL_STATE="{deployment.scratch}/prorl-$UID/{place}/$SLURMD_NODENAME"'


def _task(deployment: Deployment, array: Array) -> list[str]:
    argv = ["-m", "slurm.task", "--kind", array.kind, "--rendezvous", rendezvous(deployment)]
    argv += ["--processes", str(array.processes), "--slots", str(array.slots), "--sandbox", array.sandbox]
    argv += ["--grace-s", str(max(1, array.warn_s - SPARE_S))]
    if array.idle_exit_s is not None:
        argv += ["--idle-exit-s", str(array.idle_exit_s)]
    further = [word for option in array.options for word in shlex.split(option)]
    return [*argv, *(["--", *further] if further else [])]


def _redis(deployment: Deployment, job: RedisJob) -> list[str]:
    argv = ["-m", "slurm.redis_task", "--shared", deployment.shared]
    argv += [*_interface(job.interface), *(["--tls"] if job.tls else [])]
    further = [word for option in job.options for word in shlex.split(option)]
    return [*argv, *(["--", *further] if further else [])]


def _api(deployment: Deployment, job: ApiJob) -> list[str]:
    return ["-m", "slurm.api_task", "--shared", deployment.shared, *_interface(job.interface)]


def _backend(deployment: Deployment, job: Backend) -> list[str]:
    argv = ["-m", "slurm.backend_task", "--rendezvous", rendezvous(deployment), "--pool", job.pool]
    python = deployment.python or "python3"
    command, others = ([python if word == "{python}" else word for word in each] for each in (job.command, job.others))
    if job.nodes > 1:
        srun = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1", "--overlap"]
        srun += [f"--cpus-per-task={job.cpus}", "--kill-on-bad-exit=1"]
        command = [*srun, python, "-P", "-m", "slurm.servers.rank", shlex.join(command), shlex.join(others)]
    return [*argv, "--health", job.health, *_interface(job.interface), "--", *command]


def _interface(interface: str | None) -> list[str]:
    return ["--interface", interface] if interface else []
