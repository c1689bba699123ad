"""A file of the archive: the columns of `prorl-mq export`, a row for each segment, and what makes groups whole again.

Segments that are not trained have a row too, with mask 0, which `export` leaves out: so a group comes back whole.
Beside those columns stand `archived_ms`, `policy_version`, and `details`: in a sample's first row its record and its
trajectory without the tokens, which are in their columns, and in a group's first row the group's record. The footer
lists the groups as pages do, each with its row group, so that a list reads no row, and a group one row group.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from prorl_mq.converters.arrow import arrow, arrow_schema
from prorl_mq.converters.table import Row, Sample, rows
from prorl_mq.errors import ProrlError
from prorl_mq.rules.group_views import GroupSummary, closed_summary
from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.schema.trajectory import Trajectory

MISSING: Final = "the archive needs the extra `archive`: pip install 'prorl-mq[archive]'"
FOOTER: Final = b"prorl_mq"  # the key of our part of a file's metadata
SCHEMA: Final = 1
ROWS_TOGETHER: Final = 64  # rows of a row group, about: a group is never divided
FOOTERS: Final = 256  # that are remembered


class ArchiveDamaged(ProrlError):
    """A file of the archive is not one, or not whole."""


class WholeGroup(NamedTuple):
    """A closed group with the trajectories of its samples, by job id."""

    record: GroupRecord
    trajectories: Mapping[str, Trajectory]


class ShelvedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a file, as the footer lists it."""

    summary: GroupSummary
    row_group: int


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """Our part of a file's metadata."""

    groups: Sequence[ShelvedGroup]
    archived_ms: int
    data: str  # the mark of the Redis data that the groups come from
    schema: int = SCHEMA


class _Details(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sample: SampleRecord
    trajectory: Trajectory | None = None
    group: GroupRecord | None = None


def write(file: IO[bytes], groups: Sequence[WholeGroup], *, archived_ms: int, data: str) -> None:
    """Writes one file. Each group must have a sample."""
    pa, parquet = arrow(MISSING)
    columns = {"archived_ms": pa.int64(), "policy_version": pa.int64(), "details": pa.binary()}
    schema, listed = arrow_schema(columns), list[ShelvedGroup]()
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for number, some in enumerate(_together(groups)):
            found = [row for group in some for row in _rows(group, archived_ms)]
            writer.write_table(pa.Table.from_pylist(found, schema=schema), row_group_size=len(found))
            listed += (
                ShelvedGroup(summary=replace(closed_summary(each.record), archived=True), row_group=number)
                for each in some
            )
        footer = Footer(groups=listed, archived_ms=archived_ms, data=data)
        writer.add_key_value_metadata({FOOTER: msgspec.json.encode(footer)})


def _together(groups: Iterable[WholeGroup]) -> Iterator[list[WholeGroup]]:
    """Groups of one row group."""
    some, count = list[WholeGroup](), 0
    for each in groups:
        some.append(each)
        count += len(each.record.samples)
        if count >= ROWS_TOGETHER:
            yield some
            some, count = [], 0
    if some:
        yield some


def _rows(group: WholeGroup, archived_ms: int) -> Iterator[dict[str, Any]]:
    about: GroupRecord | None = replace(group.record, samples=())
    for record in group.record.samples:
        trajectory = group.trajectories.get(record.job_id)
        details: _Details | None = _Details(
            sample=record, group=about, trajectory=trajectory and _without_tokens(trajectory)
        )
        for row in rows(sample_of(group.record, record, trajectory), left_out=True):
            packed = None if details is None else msgspec.msgpack.encode(details)
            extra = {"archived_ms": archived_ms, "policy_version": group.record.policy_version, "details": packed}
            yield {**_plain(row), **extra}
            details = about = None


def _plain(row: Row) -> dict[str, Any]:
    """A row as Arrow takes it; its long columns stay what they are. Routed experts are in the details."""
    fields = asdict(row) | {"routed_experts": None}
    return fields | {name: msgspec.to_builtins(fields[name]) for name in ("messages", "spans")}


def sample_of(group: GroupRecord, record: SampleRecord, trajectory: Trajectory | None) -> Sample:
    """A sample as `export` has it."""
    return Sample(
        run_id=group.run_id,
        batch_id=group.batch_id,
        group_id=group.group_id,
        job_id=record.job_id,
        index=record.index,
        task_id=group.task_id,
        data_source=group.data_source,
        verdict=group.verdict.value,
        outcome=record.outcome,
        reward=record.reward,
        reward_parts=record.reward_parts,
        note=record.note,
        replaced=record.replaced,
        attempt=record.attempt,
        turns=record.turns,
        seconds=record.seconds,
        trajectory=trajectory,
    )


def _without_tokens(trajectory: Trajectory) -> Trajectory:
    bare = [replace(each, prompt_ids=(), response_ids=(), loss_mask=(), logprobs=()) for each in trajectory.segments]
    return replace(trajectory, segments=bare)


@lru_cache(maxsize=FOOTERS)
def footer(path: Path) -> Footer:
    """Reads what a file holds, which never changes. Raises `ArchiveDamaged`; `FileNotFoundError` once it is pruned."""
    _, parquet = arrow(MISSING)
    try:
        found = (parquet.read_metadata(path).metadata or {}).get(FOOTER)
        return msgspec.json.decode(found or b"", type=Footer)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, msgspec.MsgspecError) as error:  # Arrow's errors are among the first two
        raise ArchiveDamaged(f"{path} is no file of an archive, or not whole: {error}") from error


def read(path: Path, place: ShelvedGroup) -> WholeGroup:
    """One group of a file. Raises as `footer` does."""
    _, parquet = arrow(MISSING)
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read_row_group(place.row_group)
        return whole(_selected(table, place.summary.group_id))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}") from error


def _selected(table: Any, group: str) -> list[dict[str, Any]]:
    """The rows of one group, which lie side by side."""
    names = table.column("group_id").to_pylist()
    start = names.index(group)
    found: list[dict[str, Any]] = table.slice(start, names.count(group)).to_pylist()
    return found


def whole(found: Sequence[Mapping[str, Any]]) -> WholeGroup:
    """The group that rows were made of. Raises `ValueError` for others."""
    samples, trajectories, about = list[SampleRecord](), dict[str, Trajectory](), None
    by_job: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        by_job.setdefault(row["job_id"], []).append(row)
    for job, own in by_job.items():
        details = msgspec.msgpack.decode(own[0]["details"], type=_Details)
        about = about or details.group
        samples.append(details.sample)
        if details.trajectory is not None:
            trajectories[job] = _with_tokens(details.trajectory, own)
    if about is None:
        raise ValueError("no row has the group's record")
    return WholeGroup(replace(about, samples=samples), trajectories)


def _with_tokens(trajectory: Trajectory, own: Sequence[Mapping[str, Any]]) -> Trajectory:
    names = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
    found = {row["segment"]: row for row in own if row["segment"] is not None}
    if list(found) != list(range(len(trajectory.segments))):
        raise ValueError(f"{own[0]['job_id']} has {len(trajectory.segments)} segments, and rows of {list(found)}")
    segments = [
        replace(segment, **{name: row[name] for name in names})
        for segment, row in zip(trajectory.segments, found.values(), strict=True)
    ]
    return replace(trajectory, segments=segments)
