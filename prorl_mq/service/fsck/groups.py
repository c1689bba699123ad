"""Invariants of groups and batches: a group waits somewhere, counts its jobs, and belongs to a batch of its run."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prorl_mq.schema.dapo import Phase
from prorl_mq.schema.ids import BatchRef, RunRef, public, run_of, tenant_of
from prorl_mq.schema.lifecycle import MOST_DEATHS, State
from prorl_mq.service.fsck.results import sample_faults
from prorl_mq.service.fsck.violations import Violation, cancel_group, correct, remove
from prorl_mq.store.audit.groups import BatchFacts, GroupFacts, Membership
from prorl_mq.store.audit.reads import OF_RUNS, TEMPORARY, Key

Found = Iterator[tuple[int, str, str]]


def group(facts: GroupFacts) -> Iterator[Violation]:
    """Violations of one group."""
    seen = facts.text("cursor") or facts.text("changes")
    for rule in _rules(facts):
        for number, what, fix in rule(facts):
            yield Violation(number, facts.key, what, fix or cancel_group(facts.ref), seen)


def _rules(facts: GroupFacts) -> Sequence[Callable[[GroupFacts], Found]]:
    if facts.text("cursor"):
        return (_closed,)
    return (_kept, _waits, _counts, _drawn, _contents) if facts.text("n") else (_nameless,)


def _nameless(facts: GroupFacts) -> Found:
    yield 26, f"it is neither open nor closed: {dict(facts.fields)}", remove(facts.key)


def _closed(facts: GroupFacts) -> Found:
    if not facts.published:
        fix = "its record was not acknowledged by the service's own means: UNLINK the group, and submit it again"
        yield 15, f"it is closed and its record is not on the results at {facts.text('cursor')}", fix
    if facts.listed or facts.in_backlog or facts.in_reservoir or facts.in_play:
        yield 17, "it is closed and still waits for jobs", f"remove it from the sets that name it: {facts.ref}"
    if facts.spec is not None:
        yield 26, "it is closed and what its jobs needed is still there", "UNLINK its keys open: and sealed:"


def _kept(facts: GroupFacts) -> Found:
    if facts.ttl_ms >= 0:
        yield 6, f"it is open and goes in {facts.ttl_ms} ms by its TTL", f"PERSIST {facts.key}"
    if not facts.listed:
        yield 26, "it is open and not among the open groups of its run, so that no cancel finds it", ""
    if not facts.of_batch:
        yield 26, "it is open and not among the open groups of its batch, so that no cancel of that finds it", ""
    if not facts.batch_there:
        yield 6, f"it is open and its batch {facts.text('batch')} is gone, which would draw it and tell its status", ""
    if facts.spec is None:
        yield 6, "it is open and its task is gone: no worker can run it", ""
    elif facts.spec.fork is not None and not facts.has_turns:
        yield (
            6,
            f"it begins with turns of {facts.spec.fork.job_id}, and these are gone: its jobs end as infra_error",
            "",
        )


def _waits(facts: GroupFacts) -> Found:
    """An open group waits for its admission, for its jobs, for a verdict, or for its batch."""
    wanted, open_jobs = facts.number("wanted"), facts.number("open")
    undrawn = facts.text("order") == "0"
    if wanted and not (facts.in_reservoir if undrawn else facts.in_backlog):
        where = "a reservoir" if undrawn else "its run's backlog"
        yield 6, f"it wants {wanted} samples and is not in {where}: it will never be admitted", ""
    if wanted and facts.text("withdrawn"):
        yield 17, f"it is withdrawn ({facts.text('withdrawn')}) and wants {wanted} samples", ""
    if not wanted and facts.in_backlog:
        yield 17, "it waits to be admitted and wants no sample", ""
    if not wanted and not open_jobs and not facts.due and not facts.text("parked"):
        yield 6, "all its jobs have ended and no verdict on it is due", _due(facts)


def _due(facts: GroupFacts) -> str:
    prefix = facts.key.removesuffix(f"group:{facts.ref}")
    return f"XADD {prefix}due '*' g {facts.ref}"


def _counts(facts: GroupFacts) -> Found:
    """Its own counts against its jobs."""
    n, made, wanted = facts.number("n"), facts.number("next"), facts.number("wanted")
    if facts.text("withdrawn"):
        if made > n + facts.number("refills"):
            yield 17, f"it has had {made} jobs of {n} samples and {facts.number('refills')} refills", ""
    elif made + wanted != n + facts.number("refills"):
        yield 17, f"{made} jobs and {wanted} wanted are not {n} samples and {facts.number('refills')} refills", ""
    missing = [index for index, job in enumerate(facts.jobs) if job is None]
    if missing:
        yield 6, f"of its jobs {missing[:8]} are gone", ""
        return
    ended = [index for index, job in enumerate(facts.jobs) if job is not None and job.state == State.DONE]
    if made - len(ended) != facts.number("open"):
        fix = correct(f"HSET {facts.key} open {made - len(ended)}")
        yield 14, f"it counts {facts.number('open')} open jobs and has {made - len(ended)}", fix
    if sorted(facts.samples) != ended:
        yield 14, f"its jobs {ended} have ended and it has records of {sorted(facts.samples)}", ""


def _drawn(facts: GroupFacts) -> Found:
    if facts.number("order") > 0 and not facts.in_play:
        yield 20, f"it was drawn for {facts.text('batch')} and is neither in its play nor carried over", ""
    if facts.asleep:
        yield 20, f"it is parked and not among the parked groups of {facts.text('batch')}: nothing wakes it", ""


def _contents(facts: GroupFacts) -> Found:
    """Its task, its batch, and the records that it has so far."""
    for index, sample in facts.samples.items():
        for fault in sample_faults(sample):
            yield 16, f"sample {index} {fault}", ""
    if run_of(BatchRef(facts.text("batch"))) != run_of(facts.ref):
        yield 29, f"it belongs to a batch of another run: {facts.text('batch')}", ""
    if facts.spec is None:
        return
    tenant, _, pool = facts.spec.pool.rpartition(":")
    if tenant and tenant != tenant_of(facts.ref):
        yield 29, f"its jobs use the pool {pool} of tenant {tenant}", ""
    leaked = sorted(facts.sealed_names & facts.spec.payload.keys())
    if leaked:
        yield 28, f"sealed fields are in its open part: {', '.join(leaked)}", f"{cancel_group(facts.ref)} at once"
    most = facts.spec.limits.max_deaths
    in_all = max(MOST_DEATHS, most)
    worn = [
        index
        for index, job in enumerate(facts.jobs)
        if job and (job.deaths - job.progress > most or job.deaths > in_all)
    ]
    if worn:
        told = f"{most} without a logged turn between them, or than {in_all} in all"
        yield 12, f"more workers died under its jobs {worn} than {told}", ""


def batch(facts: BatchFacts) -> Iterator[Violation]:
    """Violations of one batch."""
    for number, what, fix in _batch(facts):
        yield Violation(number, facts.key, what, fix, f"{facts.text('phase')} {facts.number('closed')}")


def _batch(facts: BatchFacts) -> Found:
    phase = facts.text("phase")
    over = not facts.open and phase in {"", Phase.CLOSED}
    if over and facts.ttl_ms < 0:
        yield 26, "it is over and has no TTL", f"PEXPIRE {facts.key} 604800000"
    if not over and facts.ttl_ms >= 0:
        yield 6, f"it has work to come and goes in {facts.ttl_ms} ms by its TTL", f"PERSIST {facts.key}"
    if not facts.text("plan"):
        return
    if facts.number("n:accepted") > facts.number("target"):
        yield 20, f"it accepted {facts.number('n:accepted')} groups of a target of {facts.number('target')}", _REPORT
    if phase not in set(Phase):
        yield 20, f"its phase is {phase or 'none'}", _REPORT
    elif facts.listed != (phase != Phase.CLOSED):
        words = "among" if facts.listed else "not among"
        yield 20, f"it is {phase} and {words} the batches that are drawn for", f"`prorl-mq cancel batch {_id(facts)}`"
    if phase == Phase.CLOSED and not facts.text("cursor"):
        yield 20, "it is closed without a report", _REPORT
    if facts.number("closed") > facts.number("stored") + facts.number("joined"):
        held = facts.number("stored") + facts.number("joined")
        yield 20, f"{facts.number('closed')} of its {held} groups have a record", _REPORT


def member(facts: Membership, *, ending: bool = True) -> Iterator[Violation]:
    """A collection that names a group which is not there. `ending`: the carry-over has a time at which it ends."""
    kind, rest, fields = facts.key.kind, facts.key.rest, facts.fields
    command = "SREM" if facts.key.type == "set" else "ZREM"
    fix = f"{command} {facts.key.name} {facts.ref}"
    seen = f"{facts.ref} {fields.get('changes', '')}"
    if "n" not in fields:
        yield Violation(26, facts.key.name, f"it names {facts.ref}, which is no open group", fix, seen)
    elif kind == "reservoir" and fields.get("order") != "0":
        yield Violation(20, facts.key.name, f"{facts.ref} waits in it and was drawn already", fix, seen)
    elif kind == "drawn" and fields.get("batch") != rest:
        what = f"it names {facts.ref}, which is a group of {fields.get('batch')}"
        yield Violation(20, facts.key.name, what, fix, seen)
    elif kind == "groups" and fields.get("batch") != rest and run_of(facts.ref) != rest:
        yield Violation(
            26, facts.key.name, f"it names {facts.ref}, which is a group of {fields.get('batch')}", fix, seen
        )
    elif kind == "parked" and (fields.get("batch") != rest or "parked" not in fields):
        yield Violation(20, facts.key.name, f"{facts.ref} is not parked in this batch", fix, seen)
    elif kind == "carried" and not ending:
        what = f"{facts.ref} is carried over without an end"
        yield Violation(20, facts.key.name, what, cancel_group(facts.ref), seen)


def unowned(key: Key) -> Violation:
    """A key whose owner is on no list of those that there are."""
    if key.kind in TEMPORARY:
        return Violation(26, key.name, "it has no TTL", remove(key.name))
    what = "open group" if key.kind in {"open", "sealed", "fork"} else "intake" if key.kind == "intake" else "run"
    return Violation(26, key.name, f"no {what} {key.rest} is known", _known(key) or remove(key.name))


def _known(key: Key) -> str:
    """Advice to make the owner known again where a key may hold work, or what a trainer has not read."""
    prefix, run = key.name.removesuffix(f"{key.kind}:{key.rest}"), RunRef(key.rest)
    if key.kind == "intake":
        tenant, name = tenant_of(run), public(run)
        return f"register it, or no message on it is ever taken: SADD {prefix}intakes:{tenant} {name}"
    return f"have the service look at it: ZADD {prefix}runs 0 {run}" if key.kind in OF_RUNS else ""


def stranger(key: Key) -> Violation:
    """A key that does not fit the table of keys."""
    what = f"a {key.type} that no row of the table of keys describes"
    return Violation(26, key.name, what, f"unless a later release wrote it, {remove(key.name)}")


def misread(key: str, error: Exception) -> Violation:
    """A key that holds what nobody of the service has written."""
    fix = f"copy it for a report (DUMP {key}), with `prorl-mq fsck --json`"
    return Violation(26, key, f"what it holds, or what it names, cannot be read: {error}", fix)


def _id(facts: BatchFacts) -> str:
    return facts.ref.partition(":")[2]


_REPORT: Final = "report it with `prorl-mq fsck --json` and the service's logs"
