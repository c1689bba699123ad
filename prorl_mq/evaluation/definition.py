"""The definition of an evaluation, as its directory keeps it: what a later start must find unchanged, and what has been
submitted. With it and the samples, reports are made without the suite's files.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from prorl_mq.errors import ConfigurationError
from prorl_mq.evaluation.suite import LoadedSet, Prices, Samples, Suite, Weight
from prorl_mq.schema.messages import Limits, Sampling, Task

FILE: Final = "evaluation.json"
VERSION: Final = 1
SHOWN: Final = 5  # differences


class KeptTask(msgspec.Struct, frozen=True, kw_only=True):
    """One row: its id, and a digest of all of it."""

    task_id: str
    digest: str


class KeptSet(msgspec.Struct, frozen=True, kw_only=True):
    """One set as it is sampled and scored."""

    name: str
    n: Samples
    solved_at: float
    weight: Weight
    sampling: Sampling
    limits: Limits
    tools: Sequence[str] | None
    tasks: Annotated[Sequence[KeptTask], Meta(min_length=1)]


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: `groups` names each group's set, task and number of samples. `round`: how often this set was begun."""

    batch_id: str
    set: str
    round: int
    groups: Mapping[str, tuple[int, int]]  # group id → place of the task in its set, n


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what is sampled, and how it is scored."""

    suite: str
    pool: str
    run_id: str
    priority: int
    prices: Prices | None
    sets: Annotated[Sequence[KeptSet], Meta(min_length=1)]
    submitted: Sequence[Submitted] = ()
    models: Sequence[str] = ()  # that it was begun with, as backends name them; none where they do not
    others: Sequence[str] = ()  # that answered as well: its samples may be of either
    schema: int = VERSION

    def __post_init__(self) -> None:
        if not any(each.weight for each in self.sets):
            raise ValueError("every set has the weight 0")
        counts = {each.name: len(each.tasks) for each in self.sets}
        for each in self.submitted:
            if not all(0 <= place < counts.get(each.set, 0) for place, _ in each.groups.values()):
                raise ValueError(f"the batch {each.batch_id!r} has a task that no set has")


def define(suite: Suite, pool: str, run_id: str) -> Definition:
    """The definition of a suite that is evaluated on a pool."""
    return Definition(
        suite=suite.name,
        pool=pool,
        run_id=run_id,
        priority=suite.priority,
        prices=suite.prices,
        sets=[_kept(each) for each in suite.sets],
    )


def _kept(each: LoadedSet) -> KeptSet:
    about = each.about
    return KeptSet(
        name=about.name,
        n=each.n,
        solved_at=about.solved_at,
        weight=about.weight,
        sampling=each.sampling,
        limits=each.limits,
        tools=about.tools,
        tasks=[KeptTask(task_id=task.task_id, digest=_digest(task)) for task in each.tasks],
    )


def _digest(task: Task) -> str:
    return hashlib.blake2b(msgspec.json.encode(task, order="sorted"), digest_size=8).hexdigest()


def read(directory: Path) -> Definition | None:
    """The definition that a directory keeps; None if it has none. Raises `ConfigurationError`."""
    path = directory / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=Definition)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not of an evaluation: {error}") from None
    if found.schema > VERSION:
        raise ConfigurationError(f"{path} is of a later release (schema {found.schema}): use that one")
    return found


def write(directory: Path, made: Definition) -> None:
    """Puts a definition on the disk; it is there when this returns."""
    save(directory / FILE, msgspec.json.format(msgspec.json.encode(made), indent=1))


def save(path: Path, data: bytes) -> None:
    """Writes a whole file or none, on the disk when this returns. Raises `ConfigurationError`."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        place = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None


def check_same(kept: Definition, now: Definition, directory: Path) -> None:
    """Raises `ConfigurationError` naming what has changed since an evaluation began."""
    found = list(differences(kept, now))
    if not found:
        return
    more = len(found) - SHOWN
    told = "; ".join(found[:SHOWN]) + (f"; and {more} more differences" if more > 0 else "")
    raise ConfigurationError(f"{directory} holds another evaluation: {told}. Choose another --out, or change that back")


def differences(kept: Definition, now: Definition) -> Iterator[str]:
    """The differences, in words."""
    for name in ("suite", "pool", "priority", "prices"):
        if getattr(kept, name) != getattr(now, name):
            yield _told(name, getattr(kept, name), getattr(now, name))
    old, new = {each.name: each for each in kept.sets}, {each.name: each for each in now.sets}
    yield from (f"set {name!r} is gone" for name in old if name not in new)
    yield from (f"set {name!r} is new" for name in new if name not in old)
    for name in (name for name in old if name in new):
        yield from (f"set {name!r}: {told}" for told in _in_set(old[name], new[name]))
    if not (old.keys() ^ new.keys()) and list(old) != list(new):
        yield "the sets stand in another order"


def _in_set(kept: KeptSet, now: KeptSet) -> Iterator[str]:
    for name in ("n", "solved_at", "weight", "tools"):
        if getattr(kept, name) != getattr(now, name):
            yield _told(name, getattr(kept, name), getattr(now, name))
    for name in ("sampling", "limits"):
        before, after = getattr(kept, name), getattr(now, name)
        for field in before.__struct_fields__:
            if getattr(before, field) != getattr(after, field):
                yield _told(f"{name}.{field}", getattr(before, field), getattr(after, field))
    old, new = {each.task_id: each.digest for each in kept.tasks}, {each.task_id: each.digest for each in now.tasks}
    yield from (f"row {task_id!r} is gone" for task_id in old if task_id not in new)
    yield from (f"row {task_id!r} is new" for task_id in new if task_id not in old)
    yield from (f"row {task_id!r} has changed" for task_id, digest in old.items() if new.get(task_id, digest) != digest)
    if old == new and list(old) != list(new):
        yield "its rows stand in another order"


def _told(name: str, before: Any, after: Any) -> str:
    return f"{name} was {_text(before)}, and is {_text(after)}"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
