"""The history of a job: each state change with its duration, and each attempt of a stage. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from prorl_mq.schema.lifecycle import TABLE, State, Verb
from prorl_mq.schema.messages import Event, JobStatus, Outcome

# how the details of `admit`, `advance` and, for a job that is put aside without an attempt, `fail` begin
SUBMITTED, SANDBOX, WAITS = "submitted_ms=", "sandbox=", "waits: "
PARKED = "park"  # the event of a paused job that nobody has any more; it follows that of another verb
_OUTCOMES = frozenset(Outcome)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One event, and the state that it left the job in. `seconds`: how long that has lasted; null at the end."""

    ms: int
    event: str
    state: State
    stage: str
    seconds: float | None
    worker: str
    token: str
    detail: str


class StageAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of one stage. `ended_by` names the event that ended it; null while the worker holds the job."""

    stage: str
    number: int  # of this stage's attempts that the time line still has, from 1
    worker: str
    token: str
    claimed_ms: int
    waited_s: float  # in the queue
    held_s: float
    ended_by: str | None
    detail: str
    backends: Sequence[str]  # in the order in which the job held them
    sandbox: str | None  # node/kind/id: the one that INIT made, or that RUN used


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A job's status with all it did. Times are Redis's. `cut`: events older than the newest 64 are gone."""

    status: JobStatus
    now_ms: int
    submitted_ms: int | None  # null where the time line no longer has its beginning
    cut: bool
    changes: Sequence[Change]
    attempts: Sequence[StageAttempt]


def timeline(status: JobStatus, events: Sequence[Event], now_ms: int) -> Timeline:
    """Puts a job's events into order."""
    made = changes(events, now_ms)
    first = events[0].detail if events else ""
    told = first.startswith(SUBMITTED)
    return Timeline(
        status=status,
        now_ms=now_ms,
        submitted_ms=int(first.removeprefix(SUBMITTED)) if told else None,
        cut=bool(events) and events[0].event != Verb.ADMIT,
        changes=made,
        attempts=_attempts(made),
    )


def changes(events: Sequence[Event], now_ms: int) -> list[Change]:
    """Each event with the state it led to, and how long that lasted."""
    made: list[Change] = []
    state: State | None = None
    for place, event in enumerate(events):
        state = after(state, event)
        until_ms = events[place + 1].ms if place + 1 < len(events) else now_ms
        seconds = None if state is State.DONE else max(0, until_ms - event.ms) / 1000
        made.append(
            Change(
                ms=event.ms,
                event=event.event,
                state=state,
                stage=event.stage,
                seconds=seconds,
                worker=event.worker,
                token=event.token,
                detail=event.detail,
            )
        )
    return made


def after(before: State | None, event: Event) -> State:
    """The state that an event leaves a job in, by the table of `lifecycle`; `before` is None where it is not known.

    An event that this release does not know changes nothing: during a rolling upgrade a newer process may tell one.
    """
    if event.event in _OUTCOMES:  # a stopped job's last event is named for its end
        return State.DONE
    if event.event == Verb.ADMIT:
        return State.QUEUED
    if event.event == PARKED:
        return State.PAUSED
    followers = (nexts for (state, verb), nexts in TABLE.items() if verb == event.event and before in {None, state})
    nexts = next(followers, (before or State.QUEUED,))
    return State.DONE if State.DONE in nexts and event.detail in _OUTCOMES else nexts[0]


def _attempts(changes: Sequence[Change]) -> list[StageAttempt]:
    attempts: list[StageAttempt] = []
    sandbox: str | None = None
    for place, change in enumerate(changes):
        if change.event != Verb.CLAIM:
            continue
        held = _held(changes[place:])
        end = changes[place + len(held)] if place + len(held) < len(changes) else None
        if change.stage == "init":
            sandbox = end.detail.removeprefix(SANDBOX) if end and end.detail.startswith(SANDBOX) else None
        made = StageAttempt(
            stage=change.stage,
            number=1 + sum(each.stage == change.stage for each in attempts),
            worker=change.worker,
            token=change.token,
            claimed_ms=change.ms,
            waited_s=_waited(changes[:place]),
            held_s=round(sum(each.seconds or 0 for each in held), 3),
            ended_by=end.event if end else None,
            detail=end.detail if end else "",
            backends=[each.detail for each in held if each.event == Verb.ASSIGN],
            sandbox=sandbox if change.stage != "eval" else None,
        )
        attempts.append(made)
    return attempts


def _held(changes: Sequence[Change]) -> Sequence[Change]:
    """From a claim on, as long as its worker has the job."""
    holding = {State.LEASED, State.STOPPING}
    ends = (place for place, each in enumerate(changes) if place and (each.state not in holding or _claims(each)))
    return changes[: next(ends, len(changes))]


def _claims(change: Change) -> bool:
    return change.event == Verb.CLAIM


def _waited(before: Iterable[Change]) -> float:
    """Seconds for which the queue kept the job since its last claim, requeues included."""
    waited = 0.0
    for change in before:
        waited = waited + (change.seconds or 0) if change.state is State.QUEUED else 0.0
    return round(waited, 3)
