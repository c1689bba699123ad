"""The queue as plain Python: what every call should do, and whether a server agrees."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from prorl_mq.rules.groups import Withdrawal, decide
from prorl_mq.schema.ids import GroupRef, JobRef, group_of
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage, Verdict
from tests.support.queue import count_of
from tests.support.state import State as Look

Same = Callable[[str, object, object], None]
HELD = frozenset({State.LEASED, State.STOPPING})


@dataclass
class Job:
    """One job as it should be."""

    ref: JobRef
    state: State = State.QUEUED
    stage: Stage = Stage.INIT
    node: str | None = None
    read: bool = False  # its entry is pending, but not claimed
    worker: str = ""  # that has read it, or has its lease
    lapsed: bool = False  # its lease is over
    overdue: bool = False  # its total deadline has passed
    marked: bool = False  # to pause
    timer: bool = True  # it has a deadline that nobody has heard yet
    backend: str = ""
    bytes: int = 0
    attempts: int = 0
    deaths: int = 0
    releases: int = 0
    ending: str = ""
    outcome: str = ""
    token: str = ""  # as last seen on the server
    entry: str = ""
    committed: dict[str, str] = field(default_factory=dict)  # by token: the worker that has

    @property
    def stream(self) -> str:
        return f"stage:{self.stage}" + (f"@{self.node}" if self.node else "")

    @property
    def live(self) -> bool:
        return self.state is not State.DONE

    def queue(self, stage: Stage, node: str | None = None) -> None:
        """Also where that parks it, since it is marked."""
        self.state, self.stage, self.node = State.QUEUED, stage, node
        self.read = self.lapsed = False
        self.backend = self.worker = ""
        if self.marked:
            self.park()

    def park(self) -> None:
        self.state, self.marked, self.timer, self.bytes = State.PAUSED, True, False, 0

    def resume(self, stage: Stage) -> None:
        parked, self.marked = self.state is State.PAUSED, False
        if parked:
            self.timer = True
            self.queue(stage)


@dataclass
class Group:
    """One group as it should be, from its submission to its acknowledgement."""

    ref: GroupRef
    batch: str
    digest: str
    n: int
    max_refills: int
    wanted: int
    next: int = 0
    refills: int = 0
    due: int = 0
    backlog: bool = True
    withdrawn: bool = False
    cursor: str = ""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)  # backends that have served it

    def decision(self, *, withdrawn: bool) -> tuple[int, Verdict | None]:
        """Refills, or the verdict."""
        ended = [
            SampleRecord(job_id="", index=index, outcome=outcome) for index, outcome in sorted(self.outcomes.items())
        ]
        why = Withdrawal.CANCEL if withdrawn else None
        made = decide(ended, n=self.n, refills=self.refills, max_refills=self.max_refills, withdrawn=why)
        return made.wanted, made.verdict


class Model:
    """Every group and job of one run."""

    def __init__(self) -> None:
        self.groups: dict[GroupRef, Group] = {}
        self.jobs: dict[JobRef, Job] = {}
        self.batches: dict[str, str] = {}
        self.remembered: dict[tuple[str, GroupRef], str] = {}
        self.published: Counter[str] = Counter()  # by batch: each has one group
        self.stored: set[str] = set()
        self.backends: dict[str, bool] = {}  # in the pool; whether it is draining
        self.leaving: set[str] = set()  # left while jobs held them, and nobody has swept them since

    def of(self, group: Group) -> list[Job]:
        return [job for ref, job in self.jobs.items() if group_of(ref) == group.ref][: group.next]

    def open(self, group: Group) -> int:
        return sum(job.live for job in self.of(group)) if not group.cursor else 0

    def submit(self, ref: GroupRef, batch: str, digest: str, n: int, max_refills: int) -> str:
        if self.batches.get(batch, digest) != digest:
            return "conflict"
        there = self.groups.get(ref)
        known = there.digest if there else self.remembered.get((batch, ref))
        if known is not None:
            return "already" if known == digest else "conflict"
        self.batches[batch] = digest
        self.groups[ref] = Group(ref, batch, digest, n, max_refills, n)
        self.stored.add(batch)
        return "stored"

    def fork(self, ref: GroupRef, batch: str, digest: str, n: int, *, parent_open: bool) -> str:
        if batch in self.batches:
            return "already" if self.batches[batch] == digest else "conflict"
        if ref in self.groups:
            return "conflict"
        if not parent_open:
            return "moved"
        assert self.submit(ref, batch, digest, n, 0) == "stored"
        return "forked"

    def admit(self, group: Group) -> None:
        if group.next == 0:
            self.jobs = {ref: job for ref, job in self.jobs.items() if group_of(ref) != group.ref}
        for index in range(group.next, group.next + group.wanted):
            ref = JobRef(f"{group.ref}:{index}")
            self.jobs[ref] = Job(ref)
        group.next += group.wanted
        group.wanted, group.backlog = 0, False

    def end(self, job: Job, outcome: str) -> None:
        group = self.groups[group_of(job.ref)]
        job.state, job.outcome = State.DONE, outcome
        job.timer = job.read = job.lapsed = False
        job.backend, job.bytes, job.worker = "", 0, ""
        group.outcomes[int(job.ref.rpartition(":")[2])] = Outcome(outcome)
        if self.open(group) == 0:
            group.due += 1

    def stop(self, job: Job, outcome: str, verb: str) -> bool:
        """Whether a worker must stop it first."""
        if job.state is State.LEASED or job.read:
            job.state, job.ending, job.read = State.STOPPING, outcome, False
            job.timer = job.timer and verb != "expire"
            return True
        if job.state in {State.QUEUED, State.DELAYED, State.PAUSED}:
            self.end(job, outcome)
        elif verb == "expire":
            job.timer = False
        return False

    def withdraw(self, group: Group) -> None:
        if group.cursor:
            return
        group.withdrawn, group.wanted = True, 0
        if group.backlog:
            group.backlog = False
            group.due += 1

    def publish(self, group: Group, cursor: str) -> None:
        group.cursor = cursor
        group.due -= 1
        self.published[group.batch] += 1

    def refill(self, group: Group, wanted: int) -> None:
        group.wanted, group.backlog = wanted, True
        group.refills += wanted
        group.due -= 1

    def acked(self, group: Group) -> None:
        self.remembered[group.batch, group.ref] = group.digest
        del self.groups[group.ref]


def differences(model: Model, look: Look) -> list[str]:
    """Where the server is not as the model says. Learns the tokens and entries, which only the server gives."""
    there = _by_key(look)
    found: list[str] = []

    def same(what: str, real: object, expected: object) -> None:
        if real != expected:
            found.append(f"{what}: is {real!r}, should be {expected!r}")

    jobs = list(model.jobs.values())
    for job in jobs:
        _check_job(job, there.get(f"job:{job.ref}", {}), same)
    live = [job for job in jobs if job.live]
    same("leases", set(there.get("leases", {})), {job.ref for job in live if job.state in HELD})
    same("delayed", set(there.get("delayed", {})), {job.ref for job in live if job.state is State.DELAYED})
    same("paused", set(there.get("paused", {})), {job.ref for job in live if job.state is State.PAUSED})
    same("deadlines", set(there.get("deadlines", {})), {job.ref for job in live if job.timer})
    same("in flight", there.get("in_flight", {}), {"acme:r": str(len(live))} if live else {})
    begun = [group for group in model.groups.values() if group.next]
    same("un-acknowledged", there.get("unacked", {}), {"acme:r": str(len(begun))} if begun else {})
    same("bytes", int(there.get("bytes:eval", {}).get("value", 0)), sum(job.bytes for job in live))
    loads = {address: int(load) for address, load in there.get("pool:policy", {}).items()}
    held = Counter(job.backend for job in live if job.backend)
    same("loads", {address: load for address, load in loads.items() if load}, dict(held))
    same("pool", set(loads) - set(held), (set(model.backends) | model.leaving) - set(held))
    _check_streams(live, there, same)
    _check_groups(model, there, same)
    return found


def _by_key(look: Look) -> dict[str, dict[str, str]]:
    by_key: dict[str, dict[str, str]] = {}
    for place, value in look.flat.items():
        key, _, inner = place.partition(" ")
        if inner and inner != "ttl":
            by_key.setdefault(key, {})[inner] = value
    return by_key


def _check_job(job: Job, row: dict[str, str], same: Same) -> None:
    ref = job.ref
    same(f"{ref} state", row.get("state"), job.state)
    for name in ("attempts", "deaths", "releases"):
        same(f"{ref} {name}", int(row.get(name, 0)), getattr(job, name))
    same(f"{ref} backend", row.get("backend", ""), job.backend)
    same(f"{ref} owner", row.get("owner", ""), job.worker if job.state in HELD else "")
    token = row.get("token", "")
    if count_of(token) < count_of(job.token):
        same(f"{ref} token", token, f"no lower than {job.token}")
    job.token, job.entry = token, row.get("entry", "")
    if job.live:
        same(f"{ref} stream", row.get("stream"), job.stream)
        same(f"{ref} stage", row.get("stage"), job.stage)
        same(f"{ref} ending", row.get("ending", ""), job.ending)
    else:
        same(f"{ref} outcome", row.get("outcome"), job.outcome)
        same(f"{ref} entry", job.entry, "")


def _check_streams(live: list[Job], there: dict[str, dict[str, str]], same: Same) -> None:
    on: dict[str, dict[str, str]] = {key: {} for key in there if key.startswith("stage:")}
    pending: dict[str, set[str]] = {key: set() for key in on}
    for job in live:
        if job.state not in {State.DELAYED, State.PAUSED}:
            on.setdefault(job.stream, {})[job.entry] = f"j={job.ref}"
            if job.read or job.state in HELD:
                pending.setdefault(job.stream, set()).add(job.entry)
    for key, entries in on.items():
        row = there.get(key, {})
        same(key, {entry: ref.partition("=f=")[0] for entry, ref in row.items() if " " not in entry}, entries)
        waiting = {place.partition(" ")[2] for place in row if place.startswith("pending ")}
        same(f"{key} pending", waiting, pending.get(key, set()))


def _check_groups(model: Model, there: dict[str, dict[str, str]], same: Same) -> None:
    due = Counter(there.get("due", {}).values())
    for group in model.groups.values():
        row = there.get(f"group:{group.ref}", {})
        same(f"{group.ref} due", due[f"g={group.ref}"], group.due)
        same(f"{group.ref} cursor", row.get("cursor", ""), group.cursor)
        if not group.cursor:
            same(f"{group.ref} open", int(row.get("open", -1)), model.open(group))
            same(f"{group.ref} next", int(row.get("next", -1)), group.next)
            same(f"{group.ref} wanted", int(row.get("wanted", -1)), group.wanted)
            same(f"{group.ref} withdrawn", "withdrawn" in row, group.withdrawn)
    backlog = {ref for key, row in there.items() if key.startswith("backlog:") for ref in row}
    same("backlog", backlog, {group.ref for group in model.groups.values() if group.backlog})
    results = {entry for key, row in there.items() if key.startswith("results:") for entry in row}
    same("results", results, {group.cursor for group in model.groups.values() if group.cursor})
    opened = {ref for key, row in there.items() if key.startswith("groups:") for ref in row}
    same("open groups", opened, {group.ref for group in model.groups.values() if not group.cursor})
    same("groups", {key for key in there if key.startswith("group:")}, {f"group:{ref}" for ref in model.groups})
