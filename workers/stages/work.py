"""One claimed job as a stage sees it, and what a stage may decide about it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from prorl_mq.schema.ids import job_parts, public
from prorl_mq.schema.items import Advance, Claim, Fail, Finish, GroupSpec, Held, Release
from prorl_mq.schema.messages import FailedAttempt, Outcome, SampleRecord
from sandbox.protocol import SandboxHandle
from workers.handler import JobView

Undo = Callable[[], Awaitable[None]]
Hold = Callable[["Work"], Awaitable[None]]


def _nothing() -> None:
    pass


class Left:
    """Things that outlast an attempt whose turns were logged, and its end in front of a turn."""

    __slots__ = ("asked", "continues", "destroy", "detach", "leaves", "rest", "unseat")

    def __init__(self) -> None:
        self.continues = False  # a later attempt finds the log of its turns
        self.asked = False  # to end where the next turn would begin
        self.leaves = False  # it is being stopped, and its job is given back
        self.rest: Callable[[], object] = _nothing  # called there, once another attempt may continue
        self.unseat: Callable[[], object] = _nothing  # called when the attempt is over: its pool has room again
        self.detach: Callable[[], None] | None = None  # lets what runs in the sandbox run on: called before the stop
        self.destroy: Undo | None = None  # the sandbox, once it is committed that no later attempt needs it


async def _held(_work: "Work") -> None:
    """For a job that nobody else could have."""


class Carried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Data that travels with a job from stage to stage, beside its trajectory."""

    handler: Any = None  # INIT's carry, then RUN's export
    exported: str = ""  # the name of the file that has RUN's export in its place
    sandbox: SandboxHandle | None = None
    seconds: Mapping[str, float] = {}
    agent_error: str | None = None
    truncated_by: str | None = None
    stop_reason: str | None = None
    turns: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    tool_calls: int = 0
    forks: int = 0
    prefix_breaks: int = 0
    trajectory_bytes: int = 0
    node: str | None = None
    doubt: str | None = None  # why an attempt was repeated: its sandbox failed, and nothing tells whose doing it was
    forfeit: bool = False  # the same again: the agent's fault, which EVAL does not ask the handler about
    crowded: bool = False  # a node had no time for EVAL: the next one counts
    failed: tuple[FailedAttempt, ...] = ()
    avoid: str | None = None  # the node that the last attempt failed on
    declined: int = 0  # times that this node has left it to others since
    announced: int | None = None  # policy version announced when RUN began, where the batch limits staleness
    tool_failures: Mapping[str, int] = {}
    versions: tuple[int, int] | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A job that this worker has."""

    held: Held
    claim: Claim
    spec: GroupSpec
    sealed: bytes = b""  # packed; only EVAL has it
    budget_ms: int = 0  # that its stage may last
    holds: Hold = _held
    left: Left = msgspec.field(default_factory=Left)

    async def hold(self) -> None:
        """Returns once the job is under this worker's lease: before it makes, uses or stores what others must know as
        its own.
        """
        await self.holds(self)

    @property
    def attempt(self) -> int:
        return self.claim.attempts + self.claim.deaths

    def view(self) -> JobView:
        """The handler's view of the job."""
        return JobView(
            job_id=public(self.held.ref),
            task_id=self.spec.task_id,
            data_source=self.spec.data_source,
            index=job_parts(self.held.ref).sample,
            attempt=self.attempt,
            payload=self.spec.payload,
            sampling=self.spec.sampling,
            limits=self.spec.limits,
            tools=self.spec.tools,
            egress=self.spec.egress,
            forked=self.spec.fork is not None,
        )

    def record(self, outcome: Outcome, carried: Carried, **more: Any) -> SampleRecord:
        """The sample's record, filled from what has travelled with it."""
        return SampleRecord(
            job_id=public(self.held.ref),
            index=job_parts(self.held.ref).sample,
            outcome=outcome,
            attempt=self.attempt,
            truncated_by=carried.truncated_by,
            stop_reason=carried.stop_reason,
            turns=carried.turns,
            prompt_tokens=carried.prompt_tokens,
            response_tokens=carried.response_tokens,
            tool_calls=carried.tool_calls,
            forks=carried.forks,
            prefix_breaks=carried.prefix_breaks,
            tool_failures=carried.tool_failures,
            versions=carried.versions,
            trajectory=self.claim.trajectory or None,
            trajectory_bytes=carried.trajectory_bytes,
            seconds=carried.seconds,
            node=carried.node,
            failed=carried.failed,
            **more,
        )


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's decision on one job. `undo` destroys what the attempt left if the commit is refused."""

    item: Advance | Finish | Fail | Release
    undo: Undo | None = None
    error: BaseException | None = None  # that the attempt failed by
