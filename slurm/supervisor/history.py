"""The history of a deployment: what was lost and what was done about it, in a bounded file on shared storage.

The supervisor that holds the lock writes it. What it saw last lies beside it, so that the next one does not report
the same again; where one is killed between the two, an event may stand there twice.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slurm.tasks import SlurmTask, hosts

LIMIT_BYTES: Final = 1 << 20  # then the older half goes
BAD_NODES: Final = ("down", "drain", "fail", "maint", "unknown")


class PastEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`at` in seconds since the epoch; `who` has written it; `about` a task, a job or a node."""

    at: float
    who: str
    about: str
    text: str


class SeenTask(msgspec.Struct, frozen=True, array_like=True):
    """A task at the last look: `alive` while it ran, and the node that it ran on."""

    alive: bool
    node: str
    ended: str = ""
    job: str = ""


class LastLook(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer of Slurm, of tasks by id and of those of their nodes that were not well."""

    tasks: Mapping[str, SeenTask] = {}
    nodes: Mapping[str, str] = {}


class DeploymentHistory:
    """The file, for the supervisor that writes it."""

    def __init__(self, directory: Path, who: str) -> None:
        self._file = directory / "history.jsonl"
        self._last = directory / "seen.json"
        self._who = who

    def add(self, about: str, text: str) -> None:
        event = PastEvent(at=time.time(), who=self._who, about=about, text=text)
        if self._file.exists() and self._file.stat().st_size > LIMIT_BYTES:
            self._shorten()
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def look(self, tasks: Sequence[SlurmTask], nodes: Mapping[str, str], servers: frozenset[str]) -> None:
        """Adds what has changed since the last look, of this supervisor or of another."""
        before = self._before()
        for about, text in changes(before, tasks, nodes, servers):
            self.add(about, text)
        after = seen(before, tasks, nodes)
        if after != before:
            new = self._last.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(after))
            new.replace(self._last)

    def _before(self) -> LastLook:
        try:
            return msgspec.json.decode(self._last.read_bytes(), type=LastLook)
        except (FileNotFoundError, msgspec.MsgspecError):
            return LastLook()

    def _shorten(self) -> None:
        kept = self._file.read_bytes()[-LIMIT_BYTES // 2 :].partition(b"\n")[2]
        new = self._file.with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(kept)
        new.replace(self._file)


def read(directory: Path) -> list[PastEvent]:
    """All of it, the oldest event first; a line that is not whole is left out."""
    try:
        lines = (directory / "history.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=PastEvent))
        except msgspec.MsgspecError:
            continue
    return found


def changes(
    before: LastLook, tasks: Sequence[SlurmTask], nodes: Mapping[str, str], servers: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Losses and returns, as pairs of what it is about and a sentence. Starts and ends of servers are all reported, of
    arrays only what went wrong, of nodes those alone that tasks have used.
    """
    for task in tasks:
        yield from _changes_of_task(before.tasks.get(task.id, SeenTask(alive=False, node="")), task, servers)
    here = {task.id for task in tasks}
    for id_, known in before.tasks.items():
        if known.alive and id_ not in here:
            yield f"{id_} ({known.job})", f"ran on {known.node}, and Slurm does not know it any more"
    yield from _changes_of_nodes(before, nodes, _used(before, tasks))


def _changes_of_task(known: SeenTask, task: SlurmTask, servers: frozenset[str]) -> Iterator[tuple[str, str]]:
    about, where = f"{task.id} ({task.job})", f" on {known.node}" if known.node else ""
    if task.waiting and known.alive:
        yield about, f"was lost{where} and waits to run again ({task.reason or task.state})"
    elif task.working and known.alive and known.node != task.node:
        yield about, f"was lost{where} and runs again on {task.node}"
    elif task.working and not known.alive and known.node:
        yield about, f"runs again on {task.node}"
    elif task.working and not known.alive and task.job in servers:
        yield about, f"runs on {task.node}"
    elif _ended(task) and known.ended != task.state and (task.failed or (known.alive and task.job in servers)):
        yield about, f"has ended{where or (task.node and f' on {task.node}')}: {task.end}"


def _changes_of_nodes(before: LastLook, nodes: Mapping[str, str], used: set[str]) -> Iterator[tuple[str, str]]:
    for node, state in nodes.items():
        if _bad(state) and node in used and before.nodes.get(node) != state:
            yield node, f"is {state}{', and does not answer' if state.endswith('*') else ''}"
        elif not _bad(state) and node in before.nodes:
            yield node, f"is back ({state})"


def seen(before: LastLook, tasks: Sequence[SlurmTask], nodes: Mapping[str, str]) -> LastLook:
    """The look that the next one is compared with."""
    found = {}
    for task in tasks:
        known = before.tasks.get(task.id)
        node = task.node if task.working else known.node if known else ""
        ended = task.state if _ended(task) else ""
        found[task.id] = SeenTask(alive=task.working, node=node, ended=ended, job=task.job)
    used = _used(before, tasks)
    return LastLook(tasks=found, nodes={node: state for node, state in nodes.items() if _bad(state) and node in used})


def _used(before: LastLook, tasks: Sequence[SlurmTask]) -> set[str]:
    """Nodes of tasks that Slurm knows now or knew at the last look, and those of earlier ones that are not back yet."""
    texts = [task.node for task in tasks] + [task.node for task in before.tasks.values()]
    return {*before.nodes, *(node for text in texts for node in hosts(text))}


def _ended(task: SlurmTask) -> bool:
    return not task.alive


def _bad(state: str) -> bool:
    return state.endswith("*") or state.startswith(BAD_NODES)
