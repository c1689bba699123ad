"""Stays of a job in each stage, from its time line. Pure."""

from enum import StrEnum
from typing import Final, NamedTuple

from prorl_mq.schema.lifecycle import COUNTS
from prorl_mq.schema.messages import Outcome, Stage

WORKER_LOST: Final = "its worker was lost; the job went back"
_BEFORE: Final = {Stage.RUN: Stage.INIT, Stage.EVAL: Stage.RUN}


class Status(StrEnum):
    """RQ's words for where a job is."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"  # our `delayed`
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


LIVE: Final = frozenset({Status.QUEUED, Status.SCHEDULED, Status.STARTED})


class Visit(NamedTuple):
    """A job in one stage: one record of RQ's. Times are 0 where they have not come."""

    status: Status
    enqueued_ms: int
    started_ms: int = 0
    ended_ms: int = 0
    worker: str = ""
    outcome: str = ""  # of the whole job, where it ended here
    error: str = ""  # of the last attempt

    @property
    def live(self) -> bool:
        return self.status in LIVE


class JobVisits:
    """One job. `lines` that it was loaded with are known: the event stream brings some of them again."""

    def __init__(self, lines: str = "") -> None:
        self.visits: dict[Stage, Visit] = {}
        self.stage: Stage | None = None
        self.over = False
        self._known = ""
        for line in filter(None, lines.split("\n")):
            self.add(line)
        self._known = lines

    def add(self, line: str) -> set[Stage]:
        """The stages whose visit has changed by an event: ms, event, stage, token, worker and detail."""
        if self._known:
            if line in self._known or int(line.partition("\t")[0]) < int(self._known.partition("\t")[0]):
                return set()
            self._known = ""
        ms, event, stage, _, worker, detail = line.split("\t")
        return self._apply(int(ms), event, Stage(stage), worker, detail)

    def _apply(self, ms: int, event: str, stage: Stage, worker: str, detail: str) -> set[Stage]:
        here = self.stage or stage
        changed = {here, stage}
        match event:
            case "admit" | "promote" | "release":
                self._queue(stage, ms)
            case "claim":
                queued = self.visits.get(stage)
                begun = queued.enqueued_ms if queued else ms
                self.visits[stage] = Visit(Status.STARTED, begun, ms, worker=worker)
            case "park" | "resume":
                if not self._pause(event, here, stage, ms):
                    return set()
            case "advance":
                here = self.stage or _BEFORE[stage]
                changed = {here, stage}
                self._end(here, ms, Status.FINISHED, worker)
                self._queue(stage, ms)
            case "fail":
                self._end(here, ms, Status.FAILED, worker, error=detail)
                self.visits[stage] = Visit(Status.SCHEDULED, ms, error=detail if here is stage else "")
            case "reap" | "evacuate" if not detail:
                if here is not stage:
                    self._end(here, ms, Status.FAILED, error=WORKER_LOST)
                self._queue(stage, ms)
            case "reap" | "evacuate" | "finish" | "cancelled" | "expired":
                outcome = event if event in {"cancelled", "expired"} else detail
                self._end(here, ms, ending(outcome), worker if event == "finish" else "", outcome=outcome)
                self.over = True
                return {here}
            case _:  # told to stop, given a backend: its worker still has it
                return set()
        self.stage = stage
        return changed

    def _pause(self, event: str, here: Stage, stage: Stage, ms: int) -> bool:
        """False where a pause was taken back before its worker had obeyed."""
        was = self.visits.get(here)
        if event == "park":
            self.visits[stage] = Visit(Status.SCHEDULED, ms)
            return True
        if was is None or was.status is not Status.SCHEDULED:
            return False
        if here is not stage:
            self._end(here, ms, Status.FAILED, error="paused: it continues in another sandbox")
        self._queue(stage, ms)
        return True

    def _queue(self, stage: Stage, ms: int) -> None:
        self.visits[stage] = Visit(Status.QUEUED, ms)

    def _end(
        self, stage: Stage, ms: int, status: Status, worker: str = "", *, outcome: str = "", error: str = ""
    ) -> None:
        was = self.visits.get(stage) or Visit(status, ms)
        self.visits[stage] = was._replace(
            status=status, ended_ms=ms, worker=was.worker or worker, outcome=outcome, error=error or was.error
        )


def ending(outcome: str) -> Status:
    """Which of RQ's registries a job ends in."""
    if outcome in COUNTS:
        return Status.FINISHED
    return Status.CANCELED if outcome == Outcome.CANCELLED else Status.FAILED
