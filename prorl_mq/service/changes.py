"""The state changes that one entry of the event stream holds."""

from collections.abc import Iterable, Iterator

import msgspec


class ChangedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One state change of one job, as those see it who follow many."""

    ref: str  # of the job
    ms: int
    event: str
    stage: str
    worker: str
    detail: str


def changes_of(entry: bytes) -> Iterator[ChangedJob]:
    """The changes of an entry. Lines that another release writes in other ways are left out."""
    return filter(None, map(change_of, lines_of(entry)))


def lines_of(entry: bytes) -> Iterable[str]:
    """The lines of an entry, each a job and its event, separated by tabs."""
    return entry.decode(errors="replace").splitlines()


def change_of(line: str) -> ChangedJob | None:
    """The change that a line says; None where it says none."""
    parts = line.split("\t")
    if len(parts) < 7 or not parts[1].isdecimal():
        return None
    ref, ms, event, stage, _, worker, detail = parts[:7]
    return ChangedJob(ref=ref, ms=int(ms), event=event, stage=stage, worker=worker, detail=detail)
