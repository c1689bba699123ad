"""Sources that the page can be opened on: a file of samples or of exported rows, or the directory of an archive."""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec
from msgspec.structs import asdict

from api.viewing.exported import ExportedRow, whole_group
from prorl_mq.archive.shelf import Shelf, tell
from prorl_mq.archive.table import FOOTER, ArchiveDamaged, WholeGroup
from prorl_mq.converters.arrow import arrow
from prorl_mq.converters.table import Sample
from prorl_mq.errors import ConfigurationError
from prorl_mq.rules.group_views import GroupPage, GroupSummary, closed_summary
from prorl_mq.rules.rewards import advantages, counting, statistics
from prorl_mq.schema.forms import NAME, WORDS
from prorl_mq.schema.messages import GroupRecord, SampleRecord, Verdict

log = logging.getLogger("prorl_mq.viewing")
_SEGMENTS: Final = re.compile(rb'"segments"\s*:\s*\[')
KINDS: Final = "a file that `submit`, `demo` or `export` wrote (.jsonl, .parquet), or the directory of an archive"


class ViewedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list of runs."""

    run_id: str
    groups: int


class Source(Protocol):
    """Groups that have closed, as the page asks for them."""

    def runs(self) -> Sequence[ViewedRun]:
        """Every run, by name."""
        ...

    def groups(self, run: str, *, batch: str | None, after: str, limit: int) -> GroupPage:
        """A page of a run's groups. `after`: `next` of the page before, or 0."""
        ...

    def group(self, run: str, group: str) -> WholeGroup | None:
        """One group; None where there is none of that name."""
        ...


class ArchiveSource:
    """The runs of one tenant in an archive."""

    def __init__(self, shelf: Shelf, tenant: str, only: str | None) -> None:
        self._shelf = shelf
        self._tenant = tenant
        self._only = only

    def runs(self) -> Sequence[ViewedRun]:
        names = [each.run for each in self._shelf.runs(self._tenant) if self._only in {None, each.run}]
        return [ViewedRun(run_id=name, groups=self._shelf.count(self._tenant, name)) for name in names]

    def groups(self, run: str, *, batch: str | None, after: str, limit: int) -> GroupPage:
        return self._shelf.groups(self._tenant, run, batch=batch, after=after, limit=limit)

    def group(self, run: str, group: str) -> WholeGroup | None:
        return self._shelf.group(self._tenant, run, group)


class FileSource:
    """The groups of one file. Of each, the places of its lines are remembered, and no trajectory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[tuple[str, str], list[tuple[int, int]]] = {}  # number and place of each line
        self._summaries: dict[tuple[str, str], GroupSummary] = {}
        names = _parquet_names(path) if path.suffix == ".parquet" else self._names()
        for number, place, run, group in names:
            for name in (run, group):
                if not isinstance(name, str) or not re.fullmatch(NAME, name):
                    raise ConfigurationError(f"{path}:{number}: {name!r} is no name of a run or a group: {WORDS[NAME]}")
            self._lines.setdefault((run, group), []).append((number, place))

    def runs(self) -> Sequence[ViewedRun]:
        found: dict[str, int] = {}
        for run, _ in self._lines:
            found[run] = found.get(run, 0) + 1
        return [ViewedRun(run_id=run, groups=found[run]) for run in sorted(found)]

    def groups(self, run: str, *, batch: str | None, after: str, limit: int) -> GroupPage:
        mine = [key for key in self._lines if key[0] == run]
        found, at = list[GroupSummary](), int(after.partition("-")[0])
        while at < len(mine) and len(found) < limit:
            try:
                summary = self._summary(mine[at])
                found += [summary] if batch in {None, summary.batch_id} else []
            except ArchiveDamaged as error:
                tell(str(error))
            at += 1
        return GroupPage(groups=found, next=str(at) if at < len(mine) else None)

    def _summary(self, key: tuple[str, str]) -> GroupSummary:
        if key not in self._summaries:
            self._summaries[key] = closed_summary(self._read(key).record)
        return self._summaries[key]

    def group(self, run: str, group: str) -> WholeGroup | None:
        return self._read((run, group)) if (run, group) in self._lines else None

    def _read(self, key: tuple[str, str]) -> WholeGroup:
        """Raises `ArchiveDamaged` for lines that cannot be what has written them says."""
        try:
            kept = self._made(key)
            _expect_whole(kept, ":".join(key))
        except (OSError, LookupError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            where = f"{self._path}:{self._lines[key][0][0]}"
            raise ArchiveDamaged(f"{where}: group {key[1]!r} cannot be read: {error!r}") from error
        return kept

    def _made(self, key: tuple[str, str]) -> WholeGroup:
        if self._path.suffix == ".parquet":
            return whole_group(_parquet_rows(self._path, [place for _, place in self._lines[key]]))
        with self._path.open("rb") as file:
            lines = []
            for number, place in self._lines[key]:
                file.seek(place)
                lines.append((number, file.readline()))
        if _is_row(lines[0][1]):
            return whole_group([_decoded(self._path, number, line, ExportedRow) for number, line in lines])
        return _of_samples([(number, line) for number, line in lines], self._path)

    def _names(self) -> Iterator[tuple[int, int, str, str]]:
        place = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                whole = line.endswith(b"\n") or _is_whole(line)
                if not whole and number > 1:
                    log.warning(
                        "%s:%d is left out: whoever writes the file has not finished that line", self._path, number
                    )
                elif line.strip():
                    kind = ExportedRow if _is_row(line) else _Line
                    named: Any = _decoded(self._path, number, line, kind)
                    yield number, place, named.run_id, named.group_id
                place += len(line)


# The record of a sample as `submit` writes it: its tokens stand where the record has the name of a blob.
_RECORD: Final = msgspec.defstruct(
    "_RecordOfLine",
    [
        (each.name, each.type, each.default) if each.default is not msgspec.NODEFAULT else (each.name, each.type)
        for each in msgspec.structs.fields(SampleRecord)
        if each.name not in {"trajectory", "trajectory_bytes"}
    ],
    kw_only=True,
)


class _Line(Sample, frozen=True, kw_only=True):
    """A whole line, so that what is wrong with it is said when the file is opened."""


def _of_samples(lines: Sequence[tuple[int, bytes]], path: Path) -> WholeGroup:
    samples = [_decoded(path, number, line, _Line) for number, line in lines]
    records = [
        SampleRecord(**asdict(_decoded(path, number, line, _RECORD)), trajectory="file" if each.trajectory else None)
        for (number, line), each in zip(lines, samples, strict=True)
    ]
    first = samples[0]
    stats = statistics(counting(records))
    try:
        verdict = Verdict(first.verdict)
    except ValueError:
        raise ConfigurationError(f"{path}:{lines[0][0]}: {first.verdict!r} is no verdict of a group") from None
    record = GroupRecord(
        run_id=first.run_id,
        batch_id=first.batch_id,
        group_id=first.group_id,
        task_id=first.task_id,
        data_source=first.data_source,
        verdict=verdict,
        samples=records,
        n=sum(not each.replaced for each in records),
        rewards=stats,
        advantages=advantages(records, stats),
    )
    return WholeGroup(record, {each.job_id: each.trajectory for each in samples if each.trajectory})


def _is_whole(line: bytes) -> bool:
    """False for a line that ends too early, as the last one of a file that is being written does."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" not in str(error)
    return True


def _expect_whole(kept: WholeGroup, group: str) -> None:
    for sample in kept.record.samples:
        if sample.job_id.rpartition(":")[0] != group:
            raise ValueError(f"job {sample.job_id!r} is none of it")
    for trajectory in kept.trajectories.values():
        if any(not 0 <= turn.segment < len(trajectory.segments) for turn in trajectory.turns):
            raise ValueError("a turn is of a segment that is not there")


def _is_row(line: bytes) -> bool:
    """True for a row of an export, where a sample has a trajectory with a list of segments, or none."""
    return b'"prompt_ids"' in line and _SEGMENTS.search(line) is None


def _decoded(path: Path, number: int, line: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}:{number} is neither a sample that `prorl-mq submit` wrote nor an exported row: {error}"
        ) from None


def _parquet_names(path: Path) -> Iterator[tuple[int, int, str, str]]:
    pa, parquet = arrow()
    try:
        columns = parquet.read_table(path, columns=["run_id", "group_id"]).to_pydict()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ConfigurationError(f"{path} is no export of `prorl-mq`: {error}") from None
    for at, (run, group) in enumerate(zip(columns["run_id"], columns["group_id"], strict=True)):
        yield at + 1, at, run, group


def _parquet_rows(path: Path, places: Sequence[int]) -> list[ExportedRow]:
    _, parquet = arrow()
    found = parquet.read_table(path, memory_map=True).take(places).to_pylist()
    return [msgspec.convert(row, ExportedRow) for row in found]


def source_of(path: Path) -> Source:
    """Raises `ConfigurationError` for what the page cannot show, with the number of the line that is wrong."""
    if path.is_dir():
        return _archive(path)
    try:
        source = FileSource(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; give {KINDS}") from None
    if not source.runs():
        raise ConfigurationError(f"{path} holds no sample yet")
    return source


def _is_archived(file: Path) -> bool:
    _, parquet = arrow()
    try:
        return FOOTER in (parquet.read_metadata(file).metadata or {})
    except (OSError, ValueError):
        return False


def _archive(path: Path) -> Source:
    """An archive, or a part of one: the folder of a namespace, of a tenant, or of a run."""
    runs = sorted({file.parent for file in path.rglob("*.parquet") if file.stem.isdecimal()})
    if not runs:
        raise ConfigurationError(f"{path} has no file of an archive below it: give {KINDS}")
    tenants = sorted({run.parent for run in runs})
    if len(tenants) > 1:
        names = ", ".join(str(each) for each in tenants[:4])
        raise ConfigurationError(f"{path} holds the archives of {len(tenants)} tenants: give one of them, {names}")
    if not any(_is_archived(file) for run in runs for file in sorted(run.glob("*.parquet"))):
        raise ConfigurationError(f"{path} has no file of an archive that can be read: give {KINDS}")
    tenant = tenants[0].absolute()
    only = unquote(runs[0].name) if path.absolute() == runs[0].absolute() else None
    return ArchiveSource(Shelf(tenant.parent.parent, unquote(tenant.parent.name)), unquote(tenant.name), only)
