"""What a run has cost, from what its handlers and its trainer wrote down: pure arithmetic."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.chaos.client import Entry, N


class Injury(NamedTuple):
    """One fault: when it began and when it was over, on the monotonic clock of the machine."""

    began: float
    over: float


class Mark(NamedTuple):
    """A job began, or ended, its work."""

    what: str
    job: str
    at: float


def marks(file: Path) -> list[Mark]:
    rows = (line.split() for line in file.read_text().splitlines())
    return [Mark(what, job, float(at)) for what, job, at in rows]


def lost(groups: Iterable[str], entries: Sequence[Entry]) -> int:
    """Samples that no record of their group has with the right reward.

    >>> lost(["a", "b"], [Entry(at=0, group="a", cursor="1-0", good=8)])
    8
    """
    best: dict[str, int] = defaultdict(int)
    for entry in entries:
        best[entry.group] = max(best[entry.group], entry.good)
    return sum(N - best[group] for group in groups)


def duplicated(entries: Sequence[Entry]) -> int:
    """Samples of groups that were published more than once, each time after the first.

    >>> duplicated([Entry(at=0, group="a", cursor=cursor) for cursor in ("1-0", "1-0", "2-0")])
    8
    """
    cursors: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        if entry.group:
            cursors[entry.group].add(entry.cursor)
    return sum(N * (len(found) - 1) for found in cursors.values())


def doubled(found: Iterable[Mark], what: str = "begin") -> int:
    """How often a job did again what it had done.

    >>> doubled([Mark("begin", "a", 1), Mark("begin", "a", 2), Mark("begin", "b", 1)])
    1
    """
    counts = Counter(mark.job for mark in found if mark.what == what)
    return counts.total() - len(counts)


def recovery_s(found: Sequence[Mark], injuries: Sequence[Injury]) -> list[float | None]:
    """For each fault, how long after its end the last job that ran when it began had ended; None: one never did.

    >>> recovery_s([Mark("begin", "a", 1), Mark("end", "a", 9)], [Injury(2, 3), Injury(20, 21)])
    [6, 0.0]
    """
    began: dict[str, list[float]] = defaultdict(list)
    ended: dict[str, float] = {}
    for mark in found:
        if mark.what == "begin":
            began[mark.job].append(mark.at)
        else:
            ended[mark.job] = max(mark.at, ended.get(mark.job, 0.0))
    return [_recovery(began, ended, injury) for injury in injuries]


def _recovery(began: Mapping[str, Sequence[float]], ended: Mapping[str, float], injury: Injury) -> float | None:
    hit = [job for job, times in began.items() if min(times) <= injury.began < ended.get(job, injury.began + 1)]
    if any(job not in ended for job in hit):
        return None
    return max((max(0.0, ended[job] - injury.over) for job in hit), default=0.0)
