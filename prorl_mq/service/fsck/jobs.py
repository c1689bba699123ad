"""Invariants of jobs: one place, a known state, a token of this epoch, a lease within the budget."""

from collections.abc import Iterator
from typing import Final

from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.service.fsck.violations import Violation, cancel_job, remove
from prorl_mq.store.audit.jobs import EntryFacts, JobFacts
from prorl_mq.store.layout.keys import Keys

HELD: Final = frozenset({State.LEASED, State.STOPPING})
ASIDE: Final = frozenset({State.DELAYED, State.PAUSED})  # on no stream
ENDINGS: Final = frozenset({Outcome.CANCELLED, Outcome.EXPIRED})


def job(facts: JobFacts, keys: Keys) -> Iterator[Violation]:
    """Violations of one job."""
    found = list(_job(facts, keys))
    seen = f"{facts.text('state')} {facts.text('token')} {facts.text('entry')}"
    return (Violation(number, facts.key, what, fix or cancel_job(facts.ref), seen) for number, what, fix in found)


Found = Iterator[tuple[int, str, str]]  # number, what is wrong, what to do where a cancel does not help


def _job(facts: JobFacts, keys: Keys) -> Found:
    state, stage = facts.text("state"), facts.text("stage")
    if state not in set(State) or stage not in set(Stage):
        yield 2, f"its state is {state!r} in stage {stage!r}, which no table names", _LATER
        return
    yield from _token(facts)
    if state == State.DONE:
        yield from _done(facts)
    else:
        yield from _alive(facts)
        yield from _places(facts, keys)
        if state in HELD:
            yield from _held(facts)


def _done(facts: JobFacts) -> Found:
    places = (
        ("leases", facts.lease),
        ("delayed", facts.delayed),
        ("deadlines", facts.deadline),
        ("paused", facts.paused),
    )
    for place, score in places:
        if score is not None:
            yield 1, f"it has ended and is still in {place}", f"ZREM it from {place}"
    if facts.text("entry"):
        yield 1, f"it has ended and still has the entry {facts.text('entry')}", cancel_job(facts.ref)
    if facts.text("ending") and facts.text("outcome") != facts.text("ending"):
        yield 18, f"it was told to end {facts.text('ending')} and ended {facts.text('outcome')}", _REPORT
    if facts.ttl_ms < 0 and facts.group != "open":
        yield 26, f"its group is {facts.group} and it has no TTL", remove(facts.key)


def _alive(facts: JobFacts) -> Found:
    """Facts that a job which has not ended must show."""
    if facts.group != "open":
        yield 14, f"it is {facts.text('state')} and its group is {facts.group}", ""
    if facts.ttl_ms >= 0:
        yield 6, f"it is {facts.text('state')} and goes in {facts.ttl_ms} ms by its TTL", f"PERSIST {facts.key}"
    timer = None if facts.text("state") == State.PAUSED else facts.ms("deadline")
    if facts.text("state") != State.STOPPING and facts.deadline != timer:
        yield 11, f"its total deadline is {facts.text('deadline')}, the timer of it {facts.deadline}", ""
    if facts.ms("claimed") >= facts.ms("deadline"):
        yield 11, "it was claimed after its total deadline", ""
    if facts.text("backend") and facts.text("state") not in HELD:
        yield 24, f"it is {facts.text('state')} and holds the backend {facts.text('backend')}", ""


def _places(facts: JobFacts, keys: Keys) -> Found:
    """The one place of a job that has not ended."""
    state, entry, stream = facts.text("state"), facts.text("entry"), facts.text("stream")
    shared, run = keys.stage(Stage(facts.text("stage"))), keys.stage(Stage.RUN)
    lanes = f"{shared}#", f"{shared}!#", f"{run}@", f"{run}!@"
    if stream not in {shared, f"{shared}!"} and not stream.startswith(lanes):
        yield 1, f"it is in stage {facts.text('stage')} and on {stream or 'no stream'}", ""
    if (facts.lease is not None) != (state in HELD):
        yield 1, f"it is {state} and has {'a' if facts.lease is not None else 'no'} lease", ""
    if (facts.delayed is not None) != (state == State.DELAYED):
        yield 1, f"it is {state} and is {'' if facts.delayed is not None else 'not '}in the list of delayed jobs", ""
    if (facts.paused is not None) != (state == State.PAUSED):
        yield 1, f"it is {state} and is {'' if facts.paused is not None else 'not '}in the list of paused jobs", ""
    if state in ASIDE and entry:
        yield 1, f"it is {state} and has the entry {entry} on {stream}", ""
    if state not in ASIDE and facts.at_entry != facts.ref:
        there = f"{facts.at_entry} is there" if facts.at_entry else "nothing is there"
        yield 1, f"it is {state} with the entry {entry or 'none'} on {stream}, and {there}", ""


def _held(facts: JobFacts) -> Found:
    owner = facts.text("owner")
    if facts.at_entry == facts.ref and facts.consumer != owner:
        yield 8, f"{owner or 'nobody'} holds it, and its entry is pending for {facts.consumer or 'nobody'}", ""
    if facts.lease is not None and facts.lease > facts.ms("until"):
        yield 10, f"its lease ends {facts.lease - facts.ms('until')} ms after its stage's budget", ""
    if facts.text("state") == State.STOPPING and facts.text("ending") not in ENDINGS:
        yield 18, f"it is stopping, to end {facts.text('ending') or 'in no way'}", ""


def _token(facts: JobFacts) -> Found:
    """A token that this epoch has not given yet will be given to another job."""
    told, _, count = facts.text("token").rpartition(".")
    number, _, server = told.partition("-")
    epoch = facts.epoch
    if not number.isdecimal() or not count.isdecimal():  # none yet, or of a release before epochs
        return
    newest = int(epoch.get("number", 0))
    same = int(number) == newest and epoch.get("server", "").startswith(server)
    if int(number) > newest or (same and int(count) > int(epoch.get("tokens", 0))):
        yield 7, f"its token {facts.text('token')} lies above those that were given: {dict(epoch)}", _EPOCH


def tokens(facts: JobFacts, holders: dict[str, str]) -> Iterator[Violation]:
    """Two jobs under one token. `holders`: the job of each token so far; the caller keeps it."""
    token = facts.text("token")
    if facts.text("state") in HELD and token:
        other = holders.setdefault(token, facts.ref)
        if other != facts.ref:
            yield Violation(7, facts.key, f"its token {token} is also that of {other}", cancel_job(facts.ref), token)


def entry(facts: EntryFacts) -> Iterator[Violation]:
    """An entry behind which its job does not stand."""
    if facts.job_entry == facts.entry and facts.job_stream == facts.stream:
        return
    why = f"its job {facts.ref} stands at {facts.job_entry or 'no entry'} of {facts.job_stream or 'no stream'}"
    if facts.job_entry is None:
        why = f"there is no job {facts.ref or 'in it'}"
    fix = "a worker that reads the stage removes it; start one"
    yield Violation(1, facts.stream, f"the entry {facts.entry} is left over: {why}", fix)


def unread(stream: str, deleted: str) -> Violation:
    """A pending entry that was deleted."""
    fix = "an API process removes it a lease after it was read; start one"
    return Violation(26, stream, f"the entry {deleted} is pending and there is no such entry", fix)


_LATER: Final = "a later release may have written it: look with `prorl-mq fsck` of that one, or report it"
_REPORT: Final = "report it with `prorl-mq job ID --timeline`"
_EPOCH: Final = "stop API and workers, and set `tokens` of the epoch above it"
