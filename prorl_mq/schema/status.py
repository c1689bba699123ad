"""Answers to clients about runs, batches, cancels and pauses."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from prorl_mq.schema.dapo import Surplus
from prorl_mq.schema.settings import RunSettings

PAUSE_MS: Final = 24 * 3_600_000
LONGEST_PAUSE_MS: Final = 30 * PAUSE_MS
ForMs = Annotated[int, msgspec.Meta(ge=1000, le=LONGEST_PAUSE_MS)]
Reason = Literal["target", "exhausted", "cancelled"]


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment. `why` is empty where no group waits."""

    run_id: str
    settings: RunSettings
    backlog: int  # groups that wait to be admitted
    backlog_eval: int  # those of evaluation among them
    in_flight: int  # jobs admitted and not ended
    unacked_groups: int  # admitted and not acknowledged
    unacked_bytes: int  # of closed groups that are not acknowledged
    why: str  # its next group waits
    paused_until_ms: int | None = None  # nothing of it is admitted before; null: it is not paused


class RunsFound(list[RunStatus]):
    """The runs of a tenant. `unavailable`: cells that gave a router no answer, so that their runs are missing here."""

    def __init__(self, runs: Iterable[RunStatus], unavailable: Sequence[str] = ()) -> None:
        super().__init__(runs)
        self.unavailable = unavailable


class CancelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`cancelled` when nothing runs any more, or had ended before; `cancelling` while workers stop `jobs`."""

    id: str
    state: str
    jobs: int


class PauseEnd(StrEnum):
    """The fate of a job whose pause is over and that nobody has resumed."""

    RESUME = "resume"
    EXPIRE = "expire"  # it ends as `expired`


class PauseOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bound of a pause, from 1 s to 30 days, and what follows it."""

    for_ms: ForMs = PAUSE_MS
    then: PauseEnd = PauseEnd.RESUME


class PauseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`paused`, `pausing` while workers give `pausing` jobs back, or `resumed`. `jobs`: those that are paused, or were
    resumed.
    """

    id: str
    state: str
    jobs: int
    pausing: int = 0


class RunMove(msgspec.Struct, frozen=True, kw_only=True):
    """A run among several cells: `there` or `moved` in `cell`, `back` in it, or `moving` from it with `pages` come."""

    run_id: str
    cell: str
    state: str
    to: str = ""
    pages: int = 0


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A run as this cell sees it: `here`, `left` for `cell` with its keys still here, `gone` there, `arriving` from
    there, or `none`. `given`: the other cell may have opened it. `pages`: those that have come.
    """

    state: str
    cell: str = ""
    id: str = ""  # of the departure; of a run that is here or was: by which it came, until that move is over
    given: bool = False
    pages: int = 0


class ForkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The group that a fork has made, as the only one of the batch `batch_id`, which has the same name."""

    run_id: str
    batch_id: str
    jobs: Sequence[str]
    job_id: str  # that was forked
    turn: int  # the last one that all of them have
    shared_tokens: int  # sampled ones, which none of them samples again
    restores: int  # the turn whose checkpoint their sandboxes begin with; later calls are made again; -1: all are
    repeated: bool = False  # there was this fork already


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` are those under a worker's lease, all attempts together; `tokens` are sampled ones of ended samples."""

    count: int = 0  # groups; of `refilled`: samples
    seconds: float = 0.0
    tokens: int = 0


class BatchReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every group that the batch closed, by how; each with all that it cost, also before it was carried over."""

    run_id: str
    batch_id: str
    reason: Reason
    target_groups: int
    surplus: Surplus
    accepted: Spent
    filtered_right: Spent  # uninformative: all samples were right
    filtered_wrong: Spent  # uninformative: none was
    filtered_mixed: Spent
    failed: Spent
    cancelled: Spent  # not needed ones too, most of which were never drawn and cost nothing
    expired: Spent
    refilled: Spent  # samples in place of which another one ran; part of their groups' cost
    drawn: int  # groups, from reservoirs
    carried_in: int
    carried_out: int
    acceptance_rate: float | None = None  # accepted / (accepted + filtered)
    waste_ratio: float | None = None  # seconds that are in no accepted group's counting samples, over all seconds
    bias: Sequence[str] = ()
    seconds: float = 0.0  # from its submission to its report
    schema: int = 1
