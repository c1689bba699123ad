"""The interface of both ways to the service: over HTTP, and straight over Redis."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from prorl_mq.errors import ServiceError
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, ForkOrder, GroupRecord, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import (
    BatchReport,
    CancelAnswer,
    ForkAnswer,
    PauseAnswer,
    PauseOrder,
    RunMove,
    RunsFound,
    RunStatus,
)
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns


class Unreachable(ServiceError):
    """Nobody answered, or only to say that it cannot work now; the same call may be sent again."""

    retryable = True

    def __init__(self, message: str, *, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class ClosedGroup(NamedTuple):
    """A closed group. `cursor` is what to acknowledge, and where to continue after a restart."""

    cursor: str
    record: GroupRecord


class ClosedBatch(NamedTuple):
    """A DAPO batch that has ended, after the last of its groups."""

    cursor: str
    report: BatchReport


Closed = ClosedGroup | ClosedBatch


class Door(Protocol):
    """One attempt of each call. Raises `Unreachable` when it may be repeated, else `ServiceError`."""

    async def submit(self, batch: BatchRequest) -> BatchAccepted: ...

    async def page(self, run_id: str, after: str, wait_s: float) -> list[Closed]:
        """Groups that closed after a cursor; waits up to `wait_s` seconds for the first."""
        ...

    async def ack(self, run_id: str, cursors: Sequence[str]) -> int: ...

    async def cancel(self, kind: str, name: str) -> CancelAnswer: ...

    async def pause(self, kind: str, name: str, order: PauseOrder) -> PauseAnswer: ...

    async def resume(self, kind: str, name: str) -> PauseAnswer: ...

    async def fork(self, name: str, order: ForkOrder) -> ForkAnswer: ...

    async def job(self, name: str) -> JobStatus: ...

    async def timeline(self, name: str) -> Timeline: ...

    async def trajectory(self, name: str) -> Trajectory: ...

    async def turns(self, name: str, after: int) -> LoggedTurns: ...

    async def batch(self, name: str) -> BatchStatus: ...

    async def configure_run(self, run_id: str, settings: RunSettings) -> RunStatus: ...

    async def runs(self) -> RunsFound: ...

    async def move(self, method: str, run_id: str, about: Mapping[str, Any], query: Mapping[str, str], /) -> RunMove:
        """A call of the router of several cells."""
        ...

    async def add_backend(
        self,
        pool: str,
        address: str,
        *,
        protocol: str | None,
        model: str | None,
        adapter: str | None,
        limit: int | None,
    ) -> str: ...

    async def announce_policy_version(self, pool: str, version: int, mode: str, weights: str | None) -> None: ...

    async def policy(self, pool: str) -> PolicyStatus: ...

    async def aclose(self) -> None: ...
