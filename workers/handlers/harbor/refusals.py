"""Wishes of a task that cannot be met here, each with what to do about it. Nothing is passed over in silence."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from workers.handlers.harbor import network
from workers.handlers.harbor.fields import SCHEMAS, Environment, TaskToml

COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", "singularity-compose.yaml")
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt/prorl", "/proc", "/run", "/sbin", "/sys", "/usr")
MOST_S = 30 * 24 * 3600  # as of a batch's limits
MOST_MB = 1 << 30
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")  # Harbor's ORG_NAME_PATTERN
_NO_USERS = "everything in a sandbox runs as one user without rights; leave it out if the task works so"


def refused(task: TaskToml, given: Mapping[str, Any]) -> Iterator[str]:
    """`given` is the file's own content in today's spelling: what it leaves out was not asked for."""
    if task.schema_version not in SCHEMAS:
        known = f"{SCHEMAS[0]} to {SCHEMAS[-1]}"
        yield f"schema_version {task.schema_version!r} is not known here, {known} are: update the service"
    if task.steps is not None or task.multi_step_reward_strategy is not None:
        yield "steps: tasks of several steps are not supported; make each step a task of its own"
    if task.task is not None and (not _NAME.fullmatch(task.task.name) or ".." in task.task.name):
        yield f"task.name = {task.task.name!r}: it must be ORG/NAME of letters, digits, dots, hyphens and underscores"
    yield from network.refused(task, given)
    yield from _environment(task.environment, "environment")
    if task.verifier.environment is not None:
        yield from _environment(task.verifier.environment, "verifier.environment")
        if task.verifier.environment_mode == "shared":
            yield 'verifier.environment_mode = "shared" contradicts [verifier.environment]: leave out one of them'
    for name, phase in (("agent", task.agent), ("verifier", task.verifier)):
        if phase.user is not None:
            yield f"{name}.user = {phase.user!r}: {_NO_USERS}"
    yield from _artifacts(task)
    yield from _seconds(task)


def _seconds(task: TaskToml) -> Iterator[str]:
    """TOML has numbers that are no time: nan, inf, and those below 0."""
    collect = task.verifier.collect
    timeouts = {f"verifier.collect[{at}].timeout_sec": each.timeout_sec for at, each in enumerate(collect)}
    timeouts["verifier.timeout_sec"] = task.verifier.timeout_sec
    timeouts["environment.build_timeout_sec"] = task.environment.build_timeout_sec
    if task.agent.timeout_sec is not None:
        timeouts["agent.timeout_sec"] = task.agent.timeout_sec
    pauses: dict[str, float] = {}
    for path, table in (("environment", task.environment), ("verifier.environment", task.verifier.environment)):
        if table is not None and (check := table.healthcheck) is not None:
            timeouts[f"{path}.healthcheck.timeout_sec"] = check.timeout_sec
            for name in ("interval_sec", "start_period_sec", "start_interval_sec"):
                pauses[f"{path}.healthcheck.{name}"] = getattr(check, name)
    for name, value in timeouts.items():
        if not 0 < value <= MOST_S:
            yield f"{name} = {value}: it must be a number of seconds above 0, and 30 days at most"
    for name, value in pauses.items():
        if not 0 <= value <= MOST_S:
            yield f"{name} = {value}: it must be a number of seconds from 0 on, and 30 days at most"


def _environment(table: Environment, path: str) -> Iterator[str]:
    if table.os != "linux":
        yield f"{path}.os = {table.os!r}: sandboxes are Linux"
    if table.gpus or table.gpu_types:
        yield f"{path}.gpus: sandboxes have no GPU; such a task needs Harbor itself"
    if table.tpu:
        yield f"{path}.tpu: sandboxes have no TPU; such a task needs Harbor itself"
    if table.mcp_servers:
        yield f"{path}.mcp_servers: not supported; an agent here has a shell, an editor and finish"
    if table.skills_dir is not None:
        yield f"{path}.skills_dir: not supported; put what the agent shall read into instruction.md"
    for name in ("cpus", "memory_mb", "storage_mb"):
        if (value := getattr(table, name)) is not None and not 0 < value <= MOST_MB:
            yield f"{path}.{name} = {str(value)[:20]}: it must be above 0, and {MOST_MB} at most"
    if table.workdir is not None and (problem := unwritable(table.workdir)) is not None:
        yield f"{path}.workdir: {problem}"


def _artifacts(task: TaskToml) -> Iterator[str]:
    for artifact in task.all_artifacts():
        path = PurePosixPath(artifact.source)
        if artifact.service not in {None, "main"}:
            yield f"artifacts: {artifact.source} comes from the service {artifact.service!r}; there is main alone"
        elif not path.is_absolute() or ".." in path.parts:
            yield f"artifacts: {artifact.source!r} must be an absolute path without `..`"
    for hook in task.verifier.collect:
        if hook.service != "main":
            yield f"verifier.collect: a command for the service {hook.service!r}; there is main alone"
        if hook.user is not None:
            yield f"verifier.collect.user = {hook.user!r}: {_NO_USERS}"


def unwritable(place: str) -> str | None:
    """Why a directory cannot be one that the agent writes to; None if it can."""
    if ".." in place.split("/") or not place.isprintable():
        return f"{place!r} must be a path without `..` and control characters"
    if place == "/" or not place.startswith("/"):
        return f"{place!r} cannot be made writable as a whole: name a directory below"
    if place in SYSTEM:
        return f"{place} holds what a sandbox itself needs: name a directory below it"
    return None
