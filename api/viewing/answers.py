"""Answers to the page's requests, made of a source of closed groups, in the form that a service's have."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from api.viewing.sources import Source, ViewedRun
from api.vocabulary import vocabulary
from prorl_mq.archive.table import WholeGroup
from prorl_mq.errors import NotFound
from prorl_mq.rules.group_views import closed_view
from prorl_mq.rules.transcripts import Words
from prorl_mq.schema.forms import CURSOR
from prorl_mq.schema.messages import SampleRecord, events
from prorl_mq.schema.timeline import timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service import archived, search, trajectory_pages

LIMITS: Final = {"groups": 200, "turns": 50, "tokens": 4_096}
WHY: Final = "ended as {0.outcome}; its group was {1.verdict}"


class ViewedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a source."""

    runs: Sequence[ViewedRun]


class FileAnswers:
    """One source. The last group is remembered: a page asks for its parts one by one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._last: tuple[str, WholeGroup] | None = None

    def answer(self, parts: Sequence[str], query: Mapping[str, str]) -> Any:
        """Answers a path below `/v1`. Raises `NotFound`, and `ValueError` for a query that cannot be."""
        match list(parts):
            case ["runs"]:
                return ViewedRuns(runs=self._source.runs())
            case ["runs", run, ("groups" | "search") as what]:
                return self._of_run(run, what, query)
            case ["groups", group]:
                return closed_view(self._group(group).record)
            case ["jobs", job, "timeline"]:
                return self._timeline(job)
            case ["jobs", job, "turns"]:
                after, limit = _whole(query, "after", 0), _whole(query, "limit", 10, LIMITS["turns"])
                full = query.get("full") == "true"
                return trajectory_pages.outline(self.trajectory(job), after=after, limit=limit, full=full)
            case ["jobs", job, "tokens"]:
                return self._tokens(job, query)
        raise NotFound(f"a viewer of files has no /v1/{'/'.join(parts)}")

    def _of_run(self, run: str, what: str, query: Mapping[str, str]) -> Any:
        after, limit = _place(query), _whole(query, "limit", 50, LIMITS["groups"])
        if what == "groups":
            return self._source.groups(run, batch=query.get("batch") or None, after=after, limit=limit)
        return search.among(
            lambda place: self._source.groups(run, batch=None, after=place, limit=1),
            lambda group: self._source.group(run, group),
            Words(query.get("q", "")),
            after,
            limit,
        )

    def trajectory(self, job: str) -> Trajectory:
        """Raises `NotFound`."""
        kept, sample = self._sample(job)
        if sample.job_id not in kept.trajectories:
            raise NotFound(f"job {job!r} has no trajectory there")
        return kept.trajectories[sample.job_id]

    def _tokens(self, job: str, query: Mapping[str, str]) -> Any:
        part: Literal["prompt", "response"] = "prompt" if query.get("part") == "prompt" else "response"
        start, limit = _whole(query, "start", 0), _whole(query, "limit", 512, LIMITS["tokens"])
        segment = _whole(query, "segment", 0)
        found = trajectory_pages.tokens(self.trajectory(job), segment=segment, part=part, start=start, limit=limit)
        known = vocabulary()
        return found if known is None else replace(found, texts=known.texts(found.ids))

    def _timeline(self, job: str) -> Any:
        kept, sample = self._sample(job)
        status = replace(archived.status(kept, sample), why=WHY.format(sample, kept.record), archived=False)
        found = events(job, kept.record.timelines.get(job, ""))
        return timeline(status, found, found[-1].ms if found else 0)

    def _sample(self, job: str) -> tuple[WholeGroup, SampleRecord]:
        kept = self._group(job.rpartition(":")[0])
        for sample in kept.record.samples:
            if sample.job_id == job:
                return kept, sample
        raise NotFound(f"there is no job {job!r} there")

    def _group(self, name: str) -> WholeGroup:
        if self._last is None or self._last[0] != name:
            run, _, group = name.partition(":")
            found = self._source.group(run, group)
            if found is None:
                raise NotFound(f"there is no group {name!r} there")
            self._last = (name, found)
        return self._last[1]


def _place(query: Mapping[str, str]) -> str:
    place = query.get("after") or "0"
    if not re.fullmatch(CURSOR, place):
        raise ValueError(f"after is {place[:40]!r}: take `next` of the page before, or 0")
    return place


def _whole(query: Mapping[str, str], name: str, default: int, most: int = 10_000_000) -> int:
    text = query.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} is {text[:40]!r}: it must be a whole number")
    return min(int(text[:12]), most)
