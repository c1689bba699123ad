"""A sandbox made into a task's container: its directories, variables, files and health."""

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence

from prorl_mq.clock import monotonic
from prorl_mq.schema.faults import Cause
from sandbox.protocol import Sandbox, SandboxLimits
from workers.handlers.harbor import files
from workers.handlers.harbor.fields import Collect, Healthcheck
from workers.handlers.harbor.row import TaskRow

# Where Apptainer puts the variables of an image that it has unpacked.
_IMAGE = "/.singularity.d/env/10-docker2singularity.sh"
LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
COMMAND_S = 60.0


class Unhealthy(Exception):
    """A container that is not what its task says: the health check fails, or a file cannot be put into it."""

    cause = Cause.ROW


class NodeTooSmall(Exception):
    """A task that wants more memory than this node has."""

    cause = Cause.NODE


def limits(memory_mb: int | None, storage_mb: int | None) -> SandboxLimits:
    """The sandbox's limits; what a task leaves out is the sandbox's own. Raises `NodeTooSmall`."""
    usual = SandboxLimits()
    memory = usual.memory_bytes if memory_mb is None else memory_mb << 20
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory > there:
        raise NodeTooSmall(f"it wants {memory >> 20} MiB of memory, and this node has {there >> 20}")
    disk = usual.disk_bytes if storage_mb is None else storage_mb << 20
    # What is written lies in memory, so more than that is no promise that can be kept.
    return SandboxLimits(memory_bytes=memory, disk_bytes=min(disk, max(memory, usual.disk_bytes)))


def prelude(environment: Mapping[str, str], workdir: str) -> str:
    """The commands of a shell in the container: the image's variables, the task's, the working directory."""
    lines = [f"[ ! -r {_IMAGE} ] || . {_IMAGE}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join([*lines, f"cd {shlex.quote(workdir)}"])


def in_container(environment: Mapping[str, str], workdir: str, command: str) -> list[str]:
    """The words that run a command as Harbor does: by bash, in the working directory."""
    return ["/bin/sh", "-c", f"{prelude(environment, workdir)}\n{command}"]


async def furnish(sandbox: Sandbox, row: TaskRow) -> None:
    """The agent's container as it is before anybody acts."""
    await sandbox.run(["mkdir", "-p", *LOGS])
    await files.put(sandbox, row.files, row.workdir)
    if row.healthcheck is not None:
        await healthy(sandbox, row.healthcheck, row.environment, row.workdir)


async def healthy(sandbox: Sandbox, check: Healthcheck, environment: Mapping[str, str], workdir: str) -> None:
    """Repeats a command until it succeeds. Raises `Unhealthy` after as many failures as it allows."""
    grace = monotonic() + check.start_period_sec
    failed = 0
    command = in_container(environment, workdir, check.command)
    while True:
        early = monotonic() < grace
        done = await sandbox.run(command, timeout_s=check.timeout_sec)
        if done.exit_code == 0 and not done.timed_out:
            return
        failed += not early
        if failed >= check.retries:
            raise Unhealthy(f"its health check failed {failed} times, last with exit code {done.exit_code}")
        await asyncio.sleep(check.start_interval_sec if early else check.interval_sec)


async def gather(sandbox: Sandbox, hooks: Sequence[Collect], row: TaskRow) -> None:
    """Runs the task's own commands that make files of what runs. One that fails has made none."""
    for hook in hooks:
        await sandbox.run(in_container(row.environment, row.workdir, hook.command), timeout_s=hook.timeout_sec)
