"""Arguments and answers of the verbs: one struct for each kind of item.

A status is the script's own word: what it did, or why it refused.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import BatchRef, EntryId, GroupRef, JobRef, RunRef, Token
from prorl_mq.schema.messages import Limits, Purpose, Sampling, Stage
from prorl_mq.schema.trajectory import ForkedFrom


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a group that workers need: stored once in `open:G`, shared by its jobs."""

    batch: str
    task_id: str
    data_source: str
    payload: dict[str, object]
    n: int
    max_refills: int
    sampling: Sampling
    limits: Limits
    pool: str
    tools: Sequence[str] | None = None
    egress: Sequence[str] = []
    purpose: Purpose = Purpose.TRAIN
    priority: int = 0
    max_staleness: int | None = None
    direct: bool = False  # its trainer speaks to Redis alone: payloads up to 16 MiB stay there
    fork: ForkedFrom | None = None  # its jobs begin with turns of another job, which `fork:G` has
    trace: str | None = None  # the W3C traceparent that its jobs' traces follow from; None: they are not traced


class StoredGroup(NamedTuple):
    """A group as Redis holds it. Numbers are 0 and texts empty where it says nothing.

    A published group keeps its `verdict` and `cursor`, its place in the result stream, until it is acknowledged.
    """

    ref: GroupRef
    spec: GroupSpec | None  # None: it is published
    batch: BatchRef
    n: int
    jobs: int  # that there were, refills included
    open: int  # jobs that have not ended
    wanted: int  # samples that are no jobs yet
    refills: int
    carries: int  # how often it was carried over
    order: int | None  # its place in the order of draws; 0: it waits in a reservoir; None: it was in no reservoir
    version: int | None  # of the policy, when it was drawn
    changes: str  # its version, which every verb that changes it changes; empty: nothing has changed it yet
    parked: bool
    withdrawn: str  # why
    verdict: str
    cursor: str
    samples: Mapping[int, bytes]  # records of the samples that have ended, by index
    timelines: Mapping[int, str]  # of the same


class NewGroup(NamedTuple):
    """A group to store."""

    ref: GroupRef
    digest: str
    n: int
    total_ms: int
    open: bytes
    sealed: bytes
    family: str = ""  # its data source; empty: not known
    images: str = ""  # names of the payload files that its task names, between spaces


class NewBatch(NamedTuple):
    """The batch that groups belong to. `waits_in` has its groups' reservoir; None: the run's backlog."""

    run: RunRef
    ref: BatchRef
    digest: str
    groups: int
    jobs: int
    purpose: Purpose = Purpose.TRAIN
    priority: int = 0
    waits_in: BatchRef | RunRef | None = None
    plan: bytes = b""  # of a DAPO batch
    target: int = 0


class NewFork(NamedTuple):
    """Turns that the jobs of a forked group begin with, and their checkpoint. `lender`: the key of the hash whose
    `saved_in` names the checkpoint's file. `sealed_of`: the open group whose sealed part the new one gets; None: it is
    given.
    """

    base: bytes  # `Inherited`, packed
    parent: JobRef
    saved: bytes = b""
    saved_in: str = ""
    lender: str = ""
    sealed_of: GroupRef | None = None


class Wanted(NamedTuple):
    """A group in a backlog, as the caller of `admit` saw it."""

    ref: GroupRef
    next: int
    wanted: int
    total_ms: int
    family: str = ""  # its data source; empty: an older release submitted it


class Lane(NamedTuple):
    """A stream of a stage: the one that all its workers read, or one beside it, which only the workers of a node, those
    that have a task family, or those that are both, read. Each of INIT and RUN has one in front of it.
    """

    stage: Stage
    node: str | None = None
    family: str | None = None  # a data source
    front: bool = False  # for jobs with a log of turns: read before the one that it stands in front of

    @property
    def ahead(self) -> "Lane":
        """The lane in front of it, which is for all task families. EVAL has none: there it is this one."""
        return self if self.stage is Stage.EVAL else Lane(self.stage, self.node, front=True)


class Claim(NamedTuple):
    """A job as its entry, or a claim's answer, gives it to a worker. Past the status, fields are set only if that
    is `read`, `claimed` or `already`.
    """

    status: str
    token: Token = Token("")
    attempts: int = 0
    deaths: int = 0
    releases: int = 0
    deadline_ms: int = 0
    carry: bytes = b""
    trajectory: str = ""

    @property
    def granted(self) -> bool:
        return self.status in {"claimed", "already"}


class Entry(NamedTuple):
    """An entry read from a stage stream. `claim`: what it tells of its job; None where it tells the job's name alone.

    `long`: what the last stage carried on is too long for the entry: the job has it. `told`: the group's spec,
    packed as in `open:G`, where the entry has that, too.
    """

    ref: JobRef
    entry: EntryId
    claim: Claim | None = None
    long: bool = False
    told: bytes | None = None


class Lease(NamedTuple):
    """A job that a worker has, as its heartbeat names it: for its lease, or its claim where it has none yet."""

    ref: JobRef
    token: Token
    entry: EntryId
    lane: Lane
    held_ms: int  # since it was read
    budget_ms: int  # that its stage may last


class Held(NamedTuple):
    """A job that a worker holds: its fence and the stream it came from."""

    ref: JobRef
    token: Token
    entry: EntryId
    stage: Stage
    node: str | None  # the lane's node; None for the shared stream
    pool: str
    family: str | None = None  # the lane's task family
    read_at: float | None = None  # on this process's clock; None: it does not count
    front: bool = False  # it came from the lane in front
    told: bytes | None = None  # what its entry told of its group, for that of the next stage

    @property
    def ms(self) -> int:
        """Milliseconds since it was read."""
        return 0 if self.read_at is None else int(1000 * (monotonic() - self.read_at))

    @property
    def lane(self) -> Lane:
        """The stream that its entry is on."""
        return Lane(self.stage, self.node, self.family, self.front)


class Advance(NamedTuple):
    """A stage's commit: what the next stage gets."""

    held: Held
    node: str | None  # the lane to continue on; None for the shared stream
    carry: bytes
    trajectory: str = ""  # key of a stored blob
    eval_bytes: int = 0
    detail: str = ""  # for its time line
    family: str | None = None  # the job's: it continues on the lane of that where there is one
    exported: str = ""  # the name of a file that `carry` names, too


class Finish(NamedTuple):
    """A job's end."""

    held: Held
    outcome: str
    record: bytes


class Release(NamedTuple):
    """A job given back to the stage and the stream that it came from, to continue where its log ends."""

    held: Held


class Logged(NamedTuple):
    """A record for a job's log of turns. `place`: how many come before it; `data`: None gives the log up."""

    held: Held
    place: int
    data: bytes | None
    saved: bytes = b""  # the state of its sandbox, in the place of the one before; none: that stays
    detail: str = ""  # for its time line
    saved_in: str = ""  # the file that has that state; empty: `saved` has it


LONGEST_BACK_OFF_MS: Final = 60_000


class Fail(NamedTuple):
    """A failed attempt: continues with `stage` after `delay_ms`."""

    held: Held
    stage: Stage
    delay_ms: int  # at most LONGEST_BACK_OFF_MS
    detail: str
    counts: bool = True  # against the attempt limit; a drained worker's hand-back does not
    carry: bytes = b""  # for the next attempt; none: it finds what this one found
    aside: bool = False  # nobody scores it for now: its bytes no longer count as waiting for EVAL
    forgets: bool = False  # its log of turns: the rollout starts again from its first one


class Stop(NamedTuple):
    """A job to cancel or expire, on the stream that it was seen on."""

    ref: JobRef
    record: bytes
    stream: str
    deadline: bool = False  # true: only if its total deadline has passed


class Pause(NamedTuple):
    """A job to pause, on the stream that it was seen on."""

    ref: JobRef
    stream: str


class Resume(NamedTuple):
    """A job to resume, with the token that it was seen with, and the stage that it continues with."""

    ref: JobRef
    token: str
    stage: Stage


class Reap(NamedTuple):
    """A job to take back, as the caller saw it. `record` ends it; without one it continues with `stage`."""

    ref: JobRef
    token: str
    entry: str
    stream: str
    stage: Stage
    pool: str
    outcome: str = ""
    record: bytes = b""
    unread: bool = False  # only if no worker has read it
    deaths: int = 1


class Settlement(NamedTuple):
    """A verdict on a group: `wanted` refills, or the record to publish."""

    entry: str
    ref: GroupRef
    batch: str
    jobs: int
    changes: str  # the group's version that the verdict was made of; empty: it was gone
    wanted: int = 0
    verdict: str = ""
    record: bytes = b""
    bytes: int = 0
    seen: "Seen | None" = None  # of a drawn group
    counts: bool = False  # towards its batch's target
    park: bool = False  # keep it unpublished: it cannot count yet
    tally: Sequence[tuple[str, int]] = ()  # counters of its batch
    losses: Sequence[int] = ()  # counters of its run


class Seen(NamedTuple):
    """A drawn group's batch as the verdict saw it. If it has changed, the verdict is made again."""

    phase: str  # empty: the batch is forgotten
    carried: bool


class Ack(NamedTuple):
    """A result that the trainer has."""

    cursor: str
    ref: GroupRef
    batch: str  # that brought it, or whose report it is
    blobs: Sequence[str]
    bytes: int
    admitted: bool  # it has had jobs, so it counts as un-acknowledged
