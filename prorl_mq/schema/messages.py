"""Messages that cross a process border: requests, records, and the data that travels with a job.

Streams carry them as MessagePack, HTTP as JSON. On streams an unknown field is skipped and a new field has a default,
so that two releases can run at once; over HTTP an unknown field is refused (`schema.strict`).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from prorl_mq.schema import forms
from prorl_mq.schema.dapo import DEPRECATED, Dapo, Phase
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.status import BatchReport
from prorl_mq.schema.trajectory import RoutedExperts

FIRST = 1  # schema version of what does not say it; see "Versions of formats" in CONTRIBUTING.md
SCHEMA_VERSION = 1  # that this release writes

Name = Annotated[str, Meta(pattern=forms.NAME)]
Milliseconds = Annotated[int, Meta(ge=1, le=30 * 24 * 3600 * 1000)]


class Outcome(StrEnum):
    """Final outcome of a job."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    AGENT_ERROR = "agent_error"
    STAGE_TIMEOUT = "stage_timeout"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Verdict(StrEnum):
    """Final verdict on a group."""

    ACCEPTED = "accepted"
    FILTERED = "filtered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Stage(StrEnum):
    """The three stages, in order."""

    INIT = "init"
    RUN = "run"
    EVAL = "eval"

    __hash__ = str.__hash__  # that of `Enum` is written in Python, and each job looks things up by its stage


class Purpose(StrEnum):
    """The purpose of a batch's rollouts. While both wait, each has its guaranteed share of the run's admissions."""

    TRAIN = "train"
    EVAL = "eval"


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem of a data set. `sealed` is seen by EVAL alone; so are payload fields that the handler seals."""

    task_id: Annotated[str, Meta(min_length=1, max_length=256)]
    data_source: Annotated[str, Meta(min_length=1, max_length=96)]
    payload: dict[str, Any] = {}
    sealed: dict[str, Any] = {}
    egress: Annotated[Sequence[str], Meta(max_length=64)] = []  # NAME or NAME:PORT that RUN's sandbox may reach


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of the policy, and the limits that end RUN as `truncated`."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = -1
    seed: int | None = None  # each sample and turn derives its own from it
    raw_logprobs: bool = False  # take log-probabilities of another distribution than is sampled from; they are marked
    continue_generation: bool = False  # a turn that is cut continues from the tokens that have arrived
    routed_experts: RoutedExperts | None = None  # of this model, each token's experts come with the trajectory
    max_tokens_per_turn: Annotated[int, Meta(ge=1)] = 1024
    max_tokens: Annotated[int, Meta(ge=1)] = 32768  # sampled tokens of the whole trajectory
    max_context_tokens: Annotated[int, Meta(ge=16)] = 32768
    max_turns: Annotated[int, Meta(ge=1, le=10_000)] = 50
    tool_timeout_ms: Milliseconds = 30_000


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time budgets. A stage's runs from its claim, the total from admission."""

    init_ms: Milliseconds = 120_000
    run_ms: Milliseconds = 1_800_000
    eval_ms: Milliseconds = 600_000
    total_ms: Milliseconds = 3_600_000
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 3  # handler failures of one job
    max_deaths: Annotated[int, Meta(ge=1, le=100)] = 3  # workers that died under one job
    backoff_ms: Milliseconds = 1_000  # doubles with each attempt


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """n samples of one task. Without `group_id` the service names it after the batch and its place there."""

    task: Task
    n: Annotated[int, Meta(ge=1, le=1024)] = 1
    group_id: Name | None = None
    max_refills: Annotated[int, Meta(ge=0, le=10_000)] | None = None  # default n
    accept: Annotated[Literal["all"] | int | None, Meta(extra_json_schema=DEPRECATED)] = None  # all n, or refused


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request of a trainer. `batch_id` is the idempotency key within the run.

    With `dapo` the groups are a reservoir, from which the batch is filled up to its target. With `prompts` they belong
    to no batch: they wait until a DAPO batch of the run draws them.
    """

    run_id: Name
    batch_id: Name
    groups: Annotated[Sequence[GroupRequest], Meta(max_length=100_000)] = ()  # none: only with a run's reservoir
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    pool: Name = "policy"
    tools: Sequence[str] | None = None  # None: those the task family offers
    purpose: Purpose = Purpose.TRAIN
    priority: Annotated[int, Meta(ge=-9, le=9)] = 0  # each step stands for ten minutes of waiting
    max_staleness: Annotated[int, Meta(ge=0)] | None = None  # versions that tokens may be behind; then it expires
    dapo: Dapo | None = None
    prompts: bool = False
    schema: int = FIRST


class ForkOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A fork of a job: `n` samples that begin with its turns 0 to `turn`. `name`, of the new group and its batch, makes
    a repeat the same fork; without one it is made of the job, the turn and n.

    `batch` is the one that the job came with, as it was submitted: once the job's group has closed, the service has its
    task no more.
    """

    turn: Annotated[int, Meta(ge=0, le=10_000)]
    n: Annotated[int, Meta(ge=1, le=1024)] = 1
    name: Name | None = None
    priority: Annotated[int, Meta(ge=-9, le=9)] | None = None  # default: the group's
    batch: BatchRequest | None = None


class BatchAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a batch: sent after every group is in Redis."""

    run_id: str
    batch_id: str
    groups: Sequence[str]
    jobs: int
    repeated: bool = False


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt failed."""

    type: str
    message: str
    stage: str
    retryable: bool = True
    traceback: str | None = None
    cause: Cause | None = None  # None: an older release wrote it


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that failed and was repeated."""

    stage: Stage
    cause: Cause
    node: str
    error: str  # its type and message


class SampleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of one ended job. `reward` is null unless EVAL gave one. `trajectory` names the blob with the tokens."""

    job_id: str
    index: int
    outcome: Outcome
    reward: float | None = None
    reward_parts: Mapping[str, float] = {}
    note: str | None = None
    evidence: Mapping[str, Any] = {}  # what the reward rests on beside the answer: a judge's prompt and votes
    truncated_by: str | None = None
    stop_reason: str | None = None
    attempt: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    tool_calls: int = 0
    forks: int = 0  # segments beyond the first: prompts that did not continue the one before
    prefix_breaks: int = 0  # those of them that nobody asked for
    trajectory: str | None = None
    trajectory_bytes: int = 0
    seconds: Mapping[str, float] = {}  # in each stage: init, run, eval
    stopped_ms: float | None = None  # of a cancel, from decision to dead
    error: ErrorInfo | None = None
    node: str | None = None
    replaced: bool = False  # a refill took its place
    failed: tuple[FailedAttempt, ...] = ()  # attempts before the one that ended it, oldest first, the newest 32
    tool_failures: Mapping[str, int] = {}  # calls that failed, of each tool; 16 tools at most
    versions: tuple[int, int] | None = None  # of the policy: the oldest and the newest that its tokens are of


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One state change of one job."""

    ms: int
    job_id: str
    event: str
    stage: str
    token: str
    worker: str
    detail: str


def events(job_id: str, timeline: str) -> list[Event]:
    """Reads a time line: a line an event, of tab-separated ms, event, stage, token, worker and detail."""
    rows = (line.split("\t") for line in timeline.splitlines())
    return [
        Event(ms=int(row[0]), job_id=job_id, event=row[1], stage=row[2], token=row[3], worker=row[4], detail=row[5])
        for row in rows
    ]


class RewardStats(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards of the samples that count. `std` is that of the population: divided by their number."""

    count: int
    mean: float
    std: float
    min: float
    max: float


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a group: every sample, including replaced ones, and the time line of each.

    `advantages` has one for each sample: (reward - mean) / std, 0 where std is 0, null where the sample has no reward
    or does not count.
    """

    run_id: str
    batch_id: str
    group_id: str
    task_id: str
    data_source: str
    verdict: Verdict
    samples: Sequence[SampleRecord]
    n: int
    refills: int = 0
    reason: str | None = None
    rewards: RewardStats | None = None  # None: no sample has one
    advantages: Sequence[float | None] = ()
    bias: str | None = None  # of 0.1.0: closed with the samples that ended first; None: all n count
    submitted_in: str | None = None  # the batch that brought it, where another one drew it or took it over
    carries: int = 0  # how often a batch left it to the next one
    policy_version: int | None = None  # last announced in its batch's pool when it was drawn
    timelines: Mapping[str, str] = {}  # of each job, as `events` reads them
    purpose: Purpose = Purpose.TRAIN
    schema: int = FIRST


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job, and why it waits."""

    job_id: str
    group_id: str
    batch_id: str
    run_id: str
    state: str
    stage: str | None
    attempt: int
    owner: str | None
    outcome: Outcome | None
    why: str
    task_id: str = ""  # of the task that it is a sample of
    note: str | None = None  # this and the rest: of a job that has ended
    evidence: Mapping[str, Any] = {}
    error: ErrorInfo | None = None
    archived: bool = False  # its trainer has acknowledged it: this is the archive's copy


class DapoStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a DAPO batch. `report_cursor` acknowledges the report."""

    phase: Phase
    target_groups: int
    accepted: int
    drawn: int
    in_play: int
    waiting: int  # in its own reservoir
    rate: float  # of groups that pass the filter, as the next draw sees it
    report: BatchReport | None = None
    report_cursor: str | None = None


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a batch. `verdicts` also counts groups that left it: `drawn` by, or `carried` to another batch.

    A DAPO batch is open until its report is there: `open` is at least 1 so long.
    """

    run_id: str
    batch_id: str
    groups: int
    open: int
    verdicts: Mapping[str, int]
    dapo: DapoStatus | None = None
