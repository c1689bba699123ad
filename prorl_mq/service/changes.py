"""The state changes that one entry of the event stream holds."""

from collections.abc import Iterator

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
    """A line is a job and its event, separated by tabs. What another release writes in other ways is left out."""
    for line in entry.decode(errors="replace").splitlines():
        parts = line.split("\t")
        if len(parts) >= 7 and parts[1].isdecimal():
            ref, ms, event, stage, _, worker, detail = parts[:7]
            yield ChangedJob(ref=ref, ms=int(ms), event=event, stage=stage, worker=worker, detail=detail)
