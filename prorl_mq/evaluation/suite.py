"""Suites: TOML files that name sets of rows, how to sample them, and what counts as solved.

Unknown keys are refused with the nearest; paths are relative to the suite's file.
"""

import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Limits, Sampling, Task
from prorl_mq.schema.strict import Misfit, convert

T = TypeVar("T")
SetName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]{1,48}(?!\n)$")]
Samples = Annotated[int, Meta(ge=1, le=1024)]
Reward = Annotated[float, Meta(ge=-1e300, le=1e300)]  # JSON has neither infinite numbers nor NaN
Weight = Annotated[float, Meta(ge=0, le=1e12)]
Price = Annotated[float, Meta(ge=0, le=1e12)]
SHOWN_FAULTS = 10


class Prices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prices per million tokens. Cached prompt tokens cost as others do where theirs is left out."""

    prompt: Price = 0.0
    completion: Price = 0.0
    cached: Price | None = None
    currency: str = "USD"


class RowSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One set of rows, as the file has it. The rows are filtered, then shuffled, then limited."""

    name: SetName
    rows: str  # path of a file of JSON lines, each a task
    data_source: str | None = None  # of rows that do not name one
    filter: dict[str, Any] = {}  # field of a row, as `payload.name`, to the value or the list of values that it has
    shuffle: int | None = None  # the seed
    limit: Annotated[int, Meta(ge=1)] | None = None
    n: Samples | None = None  # samples of each task; else the suite's, or --n
    solved_at: Reward = 1.0  # a sample whose reward is at least this has solved its task
    weight: Weight = 1.0  # in the total
    sampling: dict[str, Any] = {}  # over the suite's
    limits: dict[str, Any] = {}
    tools: list[str] | None = None


class SuiteFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    name: SetName
    sets: Annotated[list[RowSet], Meta(min_length=1)]
    n: Samples | None = None
    priority: Annotated[int, Meta(ge=-9, le=9)] = 0
    sampling: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    prices: Prices | None = None


class LoadedSet(msgspec.Struct, frozen=True, kw_only=True):
    """A set with its tasks, each with an id of its own."""

    about: RowSet
    n: int
    sampling: Sampling
    limits: Limits
    tasks: Sequence[Task]


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite with its rows."""

    name: str
    priority: int
    prices: Prices | None
    sets: Sequence[LoadedSet]


def load(path: Path, n: int | None) -> Suite:
    """Reads a suite and its rows. `n` comes before the file's. Raises `ConfigurationError`, which names the fault."""
    file = _file(path)
    names = [each.name for each in file.sets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"{path}: two sets are called {twice!r}: give one of them another name")
    if not any(each.weight for each in file.sets):
        raise ConfigurationError(f"{path}: every set has the weight 0, so there is no total: give one of them another")
    sets = [_loaded(path, file, each, n) for each in file.sets]
    return Suite(name=file.name, priority=file.priority, prices=file.prices, sets=sets)


def _file(path: Path) -> SuiteFile:
    try:
        return convert(tomllib.loads(path.read_text()), SuiteFile)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    except Misfit as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _loaded(path: Path, file: SuiteFile, about: RowSet, n: int | None) -> LoadedSet:
    where = f"{path}: set {about.name!r}"
    rows = path.parent / about.rows
    tasks = _chosen(_tasks(rows, about, where), about)
    if not tasks:
        raise ConfigurationError(f"{where}: no row of {rows} is left by its filter: {about.filter}")
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise ConfigurationError(f"{where}: two rows of {rows} have the task_id {task.task_id!r}: rename one")
        seen.add(task.task_id)
    sampling = _fitting({**file.sampling, **about.sampling}, Sampling, f"{where}: sampling")
    limits = _fitting({**file.limits, **about.limits}, Limits, f"{where}: limits")
    return LoadedSet(about=about, n=n or about.n or file.n or 1, sampling=sampling, limits=limits, tasks=tasks)


def _fitting(fields: Mapping[str, Any], kind: type[T], where: str) -> T:
    try:
        return convert(dict(fields), kind)
    except Misfit as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _tasks(path: Path, about: RowSet, where: str) -> list[tuple[Any, Task]]:
    """The rows of a file as they stand there and as tasks."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # the last: a path that no system has
        fault = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{where}: {str(path)!r} cannot be read: {fault}") from None
    found: list[tuple[Any, Task]] = []
    faults: list[str] = []
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            row = _row(text, about.data_source)
            found.append((row, convert(row, Task)))
        except Misfit as misfit:
            faults.append(f"{path}:{number}: {misfit}")
    if faults:
        more = len(faults) - SHOWN_FAULTS
        told = "\n".join(faults[:SHOWN_FAULTS]) + (f"\nand {more} more lines" if more > 0 else "")
        raise ConfigurationError(f"{where}: {told}")
    if not found:
        raise ConfigurationError(f"{where}: {path} has no rows")
    return found


def _row(text: bytes, data_source: str | None) -> Any:
    try:
        row = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misfit(f"this is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise Misfit("this is not a JSON object")
    if "task" in row:
        raise Misfit("this is a group request: a suite takes tasks, and has n and limits itself")
    if "data_source" not in row:
        if data_source is None:
            raise Misfit("data_source is missing: add it, or give the set's `data_source`")
        row = {**row, "data_source": data_source}
    return row


def _chosen(rows: Sequence[tuple[Any, Task]], about: RowSet) -> list[Task]:
    kept = [task for row, task in rows if all(_has(row, name, wanted) for name, wanted in about.filter.items())]
    if about.shuffle is not None:
        random.Random(about.shuffle).shuffle(kept)  # noqa: S311 - a repeatable order is wanted
    return kept[: about.limit]


def _has(row: Any, name: str, wanted: Any) -> bool:
    for part in name.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row in wanted if isinstance(wanted, list) else row == wanted
