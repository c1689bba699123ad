"""The file that samples are written to: whole lines, each once, on the disk before they are acknowledged.

A run that was killed may have left half a line, which is cut off, and groups whose lines are there but which were not
acknowledged; those come again and are not written again.
"""

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import SCHEMA_VERSION, GroupRecord
from prorl_mq.schema.trajectory import Trajectory


class _Written(msgspec.Struct, frozen=True):
    """The fields that tell a line from others."""

    job_id: str
    group_id: str
    run_id: str
    samples: int


class OutFile:
    """One writer's hold on a file. Raises `ConfigurationError` if it has other lines, or another writer.

    `fresh` drops the samples that are in it.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self._jobs: set[str] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._whole: dict[tuple[str, str], int] = {}
        self._new = not path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
        try:
            self._take()
            if fresh:
                self._file.truncate(0)
                for known in (self._jobs, self._counts, self._whole):
                    known.clear()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # of what could not be written; `write` has told
            if error is not None and self._new and not self._jobs:
                self.path.unlink()  # as it was before, for whoever gave a wrong address
            self._file.close()

    def has(self, run_id: str, group_id: str) -> bool:
        """True if every sample of a closed group is there."""
        group = (run_id, group_id)
        return group in self._whole and self._counts[group] >= self._whole[group]

    def has_some(self, run_id: str, group_id: str) -> bool:
        """True if a sample of a group is there."""
        return self._counts[run_id, group_id] > 0

    def write(self, record: GroupRecord, trajectories: Mapping[str, Trajectory]) -> None:
        """Adds the samples of a group that are not there yet; they are on the disk when this returns.

        Raises `ConfigurationError` where they cannot be, as on a full disk: then nothing more may be written.
        """
        rows = [
            row(record, place, trajectories.get(sample.job_id))
            for place, sample in enumerate(record.samples)
            if sample.job_id not in self._jobs
        ]
        try:
            self._file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            fault = f"{self.path} cannot be written: {error.strerror}; once it can be, run the same command again"
            raise ConfigurationError(fault) from None
        for each in rows:
            self._note(msgspec.convert(each, _Written))

    def _take(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another process is writing {self.path}: wait, or choose another") from None
        self._file.seek(0)
        place = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                break
            place += len(line)
            try:
                self._note(msgspec.json.decode(line, type=_Written))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                fault = f"{self.path}:{number} is not a sample written by this command: choose another --out"
                raise ConfigurationError(fault) from None

    def _note(self, line: _Written) -> None:
        self._jobs.add(line.job_id)
        self._counts[line.run_id, line.group_id] += 1
        self._whole[line.run_id, line.group_id] = line.samples


def row(record: GroupRecord, place: int, trajectory: Trajectory | None) -> dict[str, Any]:
    """One sample as it stands in the file: its group's names, its record, and its tokens or null."""
    group = {name: getattr(record, name) for name in ("run_id", "batch_id", "group_id", "task_id", "data_source")}
    group["verdict"] = record.verdict.value
    sample = record.samples[place]
    about = {name: getattr(sample, name) for name in sample.__struct_fields__}
    del about["trajectory"], about["trajectory_bytes"]  # where the service keeps it
    return {**group, "samples": len(record.samples), **about, "trajectory": trajectory, "schema": SCHEMA_VERSION}
