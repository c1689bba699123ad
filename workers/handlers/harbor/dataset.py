"""Sets of tasks: a directory of tasks, one task, or a data set of a registry file whose tasks are on this machine."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.schema.task_schema import nearest
from workers.handlers.harbor.reading import BadTask, HarborTask, read_task
from workers.handlers.harbor.row import REQUIRED

DATA_SOURCE = "harbor"


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str
    git_url: str | None = None
    git_commit_id: str | None = None


class _DataSet(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    tasks: list[_Entry]


class NoTasks(ValueError):
    """A path that leads to no tasks, or to none of this machine."""


def directories(source: str) -> list[Path]:
    """The tasks' directories of DIRECTORY or REGISTRY.json[:NAME[@VERSION]]. Blocks. Raises `NoTasks`."""
    path = Path(source)
    if path.is_dir():
        found = [path] if (path / "task.toml").is_file() else sorted(each.parent for each in path.glob("*/task.toml"))
        if not found:
            raise NoTasks(f"{path} has no task.toml, and no directory in it has one")
        return found
    file, _, wanted = source.partition(":")
    if not file.endswith(".json"):
        raise NoTasks(f"{source} is neither a directory nor a registry's JSON file")
    return _registered(Path(file), wanted)


def _registered(file: Path, wanted: str) -> list[Path]:
    try:
        sets = msgspec.json.decode(file.read_bytes(), type=list[_DataSet])
    except (OSError, msgspec.MsgspecError) as error:
        raise NoTasks(f"{file} is no registry of data sets: {error}") from error
    named = {f"{each.name}@{each.version}": each for each in sets}
    chosen = [each for name, each in named.items() if wanted in {"", name, each.name}]
    if len(chosen) != 1:
        said = f"{wanted!r} fits {len(chosen)} of its data sets" if wanted else "it has several data sets"
        raise NoTasks(f"{file}: {said}; name one as {file}:NAME@VERSION: {nearest(wanted, named)}")
    remote = [each for each in chosen[0].tasks if each.git_url is not None]
    if remote:
        first = remote[0]
        raise NoTasks(
            f"{file}: {len(remote)} tasks of {chosen[0].name} are in git, such as {first.name}: clone "
            f"{first.git_url} at {first.git_commit_id or 'its newest commit'} and name {first.path} there"
        )
    return [file.parent / each.path for each in chosen[0].tasks]


def read_all(paths: Sequence[Path], environment: Mapping[str, str] = os.environ) -> Iterator[HarborTask | BadTask]:
    """Each task, or why it cannot be had; a name that an earlier one has is refused. Blocks."""
    seen: dict[str, Path] = {}
    for path in paths:
        try:
            task = read_task(path, environment)
        except BadTask as bad:
            yield bad
            continue
        if task.name in seen:
            yield BadTask(path, [f"{seen[task.name]} is named {task.name!r}, too: names must differ"])
            continue
        seen[task.name] = path
        yield task


def line(task: HarborTask) -> dict[str, Any]:
    """A task as `prorl-mq submit` takes it."""
    opened = msgspec.to_builtins(task.row)
    sealed = {"verifier": msgspec.to_builtins(task.hidden)}
    if task.solution is not None:
        sealed["solution"] = msgspec.to_builtins(task.solution)
    kept = {name: value for name, value in opened.items() if name in REQUIRED or value}
    egress = {"egress": task.egress} if task.egress else {}
    return {"task_id": task.name, "data_source": DATA_SOURCE, "payload": kept, "sealed": sealed, **egress}
