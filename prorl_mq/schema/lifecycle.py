"""The transition table of a job: the only place that defines which state follows which.

Lua scripts move jobs but hold no policy: each call carries the rules of its verb, taken from this table, and a script
refuses whatever its rules do not name. The diagram in `docs/state_machine.md` is generated from here
(`python -m prorl_mq.schema.lifecycle`).
"""

from enum import StrEnum
from typing import Final

from prorl_mq.schema.messages import Outcome

MOST_DEATHS: Final = 10  # of workers under one job, whatever it has logged in between; more where `max_deaths` is more


class State(StrEnum):
    """State of a job. Before `queued` it is a sample that its group still wants, in the run's backlog."""

    QUEUED = "queued"  # on a stream; the worker that has read it may be at work on it, and claims it if that takes long
    LEASED = "leased"
    DELAYED = "delayed"
    PAUSED = "paused"  # nobody has it and its total deadline stands still, until it is resumed
    STOPPING = "stopping"  # a worker has it and was told to stop; `ending` says whether cancelled or expired
    DONE = "done"


class Verb(StrEnum):
    """Events of a job. Each has a script of its name; CANCEL and EXPIRE run `stop`, EVACUATE runs `reap`."""

    ADMIT = "admit"
    CLAIM = "claim"
    DIVERT = "divert"
    RENEW = "renew"
    ADVANCE = "advance"
    RELEASE = "release"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    CONFIRM = "confirm"
    REAP = "reap"
    EVACUATE = "evacuate"
    EXPIRE = "expire"
    PROMOTE = "promote"
    ASSIGN = "assign"
    LOG = "log"
    PAUSE = "pause"
    RESUME = "resume"


S, V = State, Verb

# (state, verb) → the states that may follow. A verb with two of them is told which one by its caller. Where there is
# another one beside it, `paused` follows for a job that is marked to pause.
TABLE: dict[tuple[State, Verb], tuple[State, ...]] = {
    (S.QUEUED, V.CLAIM): (S.LEASED,),
    (S.QUEUED, V.ADVANCE): (S.QUEUED, S.PAUSED),  # done before it was claimed, as the next three
    (S.QUEUED, V.RELEASE): (S.QUEUED, S.PAUSED),
    (S.QUEUED, V.FINISH): (S.DONE,),
    (S.QUEUED, V.FAIL): (S.DELAYED, S.PAUSED),
    (S.QUEUED, V.DIVERT): (S.QUEUED, S.PAUSED),  # read by a worker that lacks its task family
    (S.QUEUED, V.CANCEL): (S.STOPPING, S.DONE),  # where a worker has read it, and where none has
    (S.QUEUED, V.EXPIRE): (S.STOPPING, S.DONE),
    (S.QUEUED, V.REAP): (S.QUEUED, S.DONE, S.PAUSED),  # read by a worker that never claimed it
    (S.QUEUED, V.EVACUATE): (S.QUEUED, S.PAUSED),
    (S.QUEUED, V.PAUSE): (S.QUEUED, S.PAUSED),  # where a worker has read it, and where none has
    (S.QUEUED, V.RESUME): (S.QUEUED,),  # before its worker has given it back, as of a leased one
    (S.LEASED, V.RENEW): (S.LEASED,),
    (S.LEASED, V.ASSIGN): (S.LEASED,),
    (S.LEASED, V.LOG): (S.LEASED,),
    (S.LEASED, V.ADVANCE): (S.QUEUED, S.PAUSED),
    (S.LEASED, V.RELEASE): (S.QUEUED, S.PAUSED),
    (S.LEASED, V.FINISH): (S.DONE,),
    (S.LEASED, V.FAIL): (S.DELAYED, S.PAUSED),
    (S.LEASED, V.CANCEL): (S.STOPPING,),
    (S.LEASED, V.EXPIRE): (S.STOPPING,),
    (S.LEASED, V.REAP): (S.QUEUED, S.DONE, S.PAUSED),
    (S.LEASED, V.PAUSE): (S.LEASED,),
    (S.LEASED, V.RESUME): (S.LEASED,),
    (S.DELAYED, V.PROMOTE): (S.QUEUED,),
    (S.DELAYED, V.CANCEL): (S.DONE,),
    (S.DELAYED, V.EXPIRE): (S.DONE,),
    (S.DELAYED, V.PAUSE): (S.PAUSED,),
    (S.PAUSED, V.PAUSE): (S.PAUSED,),  # for another time
    (S.PAUSED, V.RESUME): (S.QUEUED,),
    (S.PAUSED, V.CANCEL): (S.DONE,),
    (S.PAUSED, V.EXPIRE): (S.DONE,),  # by the time of its pause, never by its deadline
    (S.STOPPING, V.RENEW): (S.STOPPING,),
    (S.STOPPING, V.CONFIRM): (S.DONE,),
    (S.STOPPING, V.REAP): (S.DONE,),
}

FIRST = State.QUEUED
COUNTS = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR})
REFILLED = frozenset({Outcome.STAGE_TIMEOUT, Outcome.INFRA_ERROR})


def follows(state: State, verb: Verb) -> tuple[State, ...]:
    return TABLE.get((state, verb), ())


def rules(verb: Verb, *, to: State | None = None) -> dict[str, str]:
    """State → next state for one verb, as its script wants it. `to` picks where the table leaves a choice; without it,
    of a job that is not marked to pause.
    """
    picked: dict[str, str] = {}
    for (state, each), nexts in TABLE.items():
        if each is not verb:
            continue
        unmarked = nexts if len(nexts) == 1 else tuple(after for after in nexts if after is not State.PAUSED)
        if to is None and len(unmarked) == 1:
            picked[state.value] = unmarked[0].value
        elif to is not None and to in nexts:
            picked[state.value] = to.value
    return picked


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {FIRST.value}: {Verb.ADMIT.value}"]
    lines += [
        f"    {state.value} --> {after.value}: {verb.value}"
        for (state, verb), nexts in TABLE.items()
        for after in nexts
    ]
    lines.append(f"    {State.DONE.value} --> [*]: settle")
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
