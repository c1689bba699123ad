"""The client of a trainer that has no event loop: the same calls, made on a loop in its own thread.

Generated from `asynchronous.py` by `python -m prorl_mq.client.generate`: change that one, and run this.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prorl_mq.client.asynchronous import WAIT_S, AsyncClient
from prorl_mq.client.threaded import Threaded
from prorl_mq.client.transport import ClosedBatch, ClosedGroup
from prorl_mq.schema.ids import DEFAULT_TENANT
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import PAUSE_MS, CancelAnswer, ForkAnswer, PauseAnswer, RunMove, RunsFound, RunStatus
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns


class Client(Threaded):
    """`AsyncClient` for plain code: the same arguments, methods and errors. May be shared by threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        uds: str | None = None,
        tenant: str = DEFAULT_TENANT,
        namespace: str = "prorl",
        patience_s: float = 60.0,
    ) -> None:
        super().__init__(
            AsyncClient(url, token=token, uds=uds, tenant=tenant, namespace=namespace, patience_s=patience_s)
        )

    def submit(self, batch: BatchRequest | Mapping[str, Any]) -> BatchAccepted:
        """Hands groups over; when it returns, they survive any crash. The same batch again is the same batch."""
        return self._run(self._client.submit(batch))

    def results(self, run_id: str, after: str | None = None, wait_s: float = WAIT_S) -> Iterator[ClosedGroup]:
        """Closed groups without end, from a cursor on; without one, from the oldest that is not acknowledged."""
        return self._iterate(self._client.results(run_id, after, wait_s))

    def groups(
        self, run_id: str, batch_id: str | None = None, after: str | None = None, wait_s: float = WAIT_S
    ) -> Iterator[ClosedGroup]:
        """The groups of one batch, until all of them are in; without a batch, those of the run without end."""
        return self._iterate(self._client.groups(run_id, batch_id, after, wait_s))

    def ack(self, run_id: str, cursors: Sequence[str]) -> int:
        """Deletes results that the trainer has; how many were there."""
        return self._run(self._client.ack(run_id, cursors))

    def cancel(self, kind: str, name: str) -> CancelAnswer:
        """Cancels a job, group, batch or run by its id."""
        return self._run(self._client.cancel(kind, name))

    def pause(self, kind: str, name: str, *, for_s: float = PAUSE_MS / 1000, then: str = "resume") -> PauseAnswer:
        """Pauses a job or run by its id, for at most `for_s`; then it is resumed, or with `expire` its jobs end."""
        return self._run(self._client.pause(kind, name, for_s=for_s, then=then))

    def resume(self, kind: str, name: str) -> PauseAnswer:
        """Resumes a paused job, or a run with all its jobs."""
        return self._run(self._client.resume(kind, name))

    def fork(
        self,
        name: str,
        turn: int,
        n: int = 1,
        *,
        group: str | None = None,
        priority: int | None = None,
        batch: BatchRequest | Mapping[str, Any] | None = None,
    ) -> ForkAnswer:
        """Makes a group of `n` samples that begin with the turns 0 to `turn` of a job, and a copy of its sandbox.

        `group` names it and its batch; the same again is the same fork. `batch`: as the job was submitted, once its
        group has closed.
        """
        return self._run(self._client.fork(name, turn, n, group=group, priority=priority, batch=batch))

    def job(self, name: str) -> JobStatus:
        """The state of a job, and why it waits. A job's id reads run:group:index."""
        return self._run(self._client.job(name))

    def timeline(self, name: str) -> Timeline:
        """Every state change of a job, its attempts, and why it waits."""
        return self._run(self._client.timeline(name))

    def trajectory(self, name: str) -> Trajectory:
        """The tokens of a job; until its group is acknowledged."""
        return self._run(self._client.trajectory(name))

    def turns(self, name: str, after: int = 0) -> LoggedTurns:
        """The finished turns of a job from number `after` on, also while it is in RUN; ask for those behind them with
        `next`. Until its group is acknowledged.
        """
        return self._run(self._client.turns(name, after))

    def batch(self, name: str) -> BatchStatus:
        """The progress of a batch. A batch's id reads run:batch."""
        return self._run(self._client.batch(name))

    def configure_run(self, run_id: str, settings: RunSettings | Mapping[str, Any]) -> RunStatus:
        """Puts weight and quotas in place of those the run had; what is left out is the default."""
        return self._run(self._client.configure_run(run_id, settings))

    def runs(self) -> RunsFound:
        """The tenant's runs: what each holds, its settings, and why its groups wait. Those of the cells that its
        `unavailable` names are missing.
        """
        return self._run(self._client.runs())

    def move_run(self, run_id: str, cell: str, *, within_s: float = 30.0, tenant: str | None = None) -> RunMove:
        """For operators, at a router: has a run continue in another cell. Waits `within_s` until none of its jobs is in
        flight. Where it fails, the same again finishes the move. `tenant`: another one, whose run it is.
        """
        return self._run(self._client.move_run(run_id, cell, within_s=within_s, tenant=tenant))

    def move_of_run(self, run_id: str, *, tenant: str | None = None) -> RunMove:
        """Says where a run is, or between which cells: `moving`."""
        return self._run(self._client.move_of_run(run_id, tenant=tenant))

    def return_run(self, run_id: str, *, lost: bool = False, tenant: str | None = None) -> RunMove:
        """Has a run that has left its cell, and has not arrived, continue there. `lost`: the other one is, for good."""
        return self._run(self._client.return_run(run_id, lost=lost, tenant=tenant))

    def report(self, run_id: str, batch_id: str) -> ClosedBatch:
        """Yield and cost of a DAPO batch, and the cursor that acknowledges them; there when its groups have ended."""
        return self._run(self._client.report(run_id, batch_id))

    def add_backend(
        self,
        pool: str,
        address: str,
        *,
        protocol: str | None = None,
        model: str | None = None,
        adapter: str | None = None,
        limit: int | None = None,
    ) -> str:
        """Adds an inference endpoint to a pool: `joined` or `known`. `adapter`: the LoRA adapter that is the policy."""
        return self._run(
            self._client.add_backend(pool, address, protocol=protocol, model=model, adapter=adapter, limit=limit)
        )

    def announce_policy_version(self, pool: str, version: int, mode: str = "keep", weights: str | None = None) -> None:
        """Says which policy version a pool serves from now on. `mode` is keep, drain or abort.

        With `weights`, a directory as the backends see it, the service loads them; `policy` tells how far it is.
        """
        self._run(self._client.announce_policy_version(pool, version, mode, weights))

    def policy(self, pool: str) -> PolicyStatus:
        """The version announced last, and how far each backend of the pool is."""
        return self._run(self._client.policy(pool))
