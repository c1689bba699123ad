"""The client of a trainer that runs an event loop."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from prorl_mq import local_token
from prorl_mq.client.following import Following
from prorl_mq.client.http import HttpDoor
from prorl_mq.client.patience import Waiting, persistently
from prorl_mq.client.repeats import Repeats
from prorl_mq.client.transport import ClosedBatch, ClosedGroup, Door
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.schema.ids import DEFAULT_TENANT
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, ForkOrder, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import (
    PAUSE_MS,
    CancelAnswer,
    ForkAnswer,
    PauseAnswer,
    PauseOrder,
    RunMove,
    RunsFound,
    RunStatus,
)
from prorl_mq.schema.strict import Misfit, closest, convert
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns
from prorl_mq.servers import SCHEMES

T = TypeVar("T")
KINDS: Final = ("job", "group", "batch", "run")
WAIT_S: Final = 30.0


class AsyncClient:
    """Speaks to the service at `url`: http(s):// to its API; redis(s):// or unix:// straight to its Redis.

    A path (it begins with `/` or `.`) is the rendezvous file in which a service on a cluster says where its API is.
    Without a `url` it is PRORL_URL, or the service that `prorl-mq up` runs in PRORL_STATE (`.state`).

    A call waits up to `patience_s` for a service that restarts or has no room; each may be sent twice. `token` and
    `uds` are for HTTP, `tenant` and `namespace` for Redis. Raises `ServiceError` with what the service said.
    """

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
        self.url = url = url or os.environ.get("PRORL_URL") or local_token.address()
        self.patience_s = patience_s
        self.waiting: Waiting | None = None  # told while the service does not answer
        self._repeats = Repeats()
        self._door = _door(url, token=token, uds=uds, tenant=tenant, namespace=namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._door.aclose()

    async def submit(self, batch: BatchRequest | Mapping[str, Any]) -> BatchAccepted:
        """Hands groups over; when it returns, they survive any crash. The same batch again is the same batch."""
        request = batch if isinstance(batch, BatchRequest) else _made(batch, BatchRequest)
        return await self._persistently(lambda: self._door.submit(request))

    def results(self, run_id: str, after: str | None = None, wait_s: float = WAIT_S) -> AsyncIterator[ClosedGroup]:
        """Closed groups without end, from a cursor on; without one, from the oldest that is not acknowledged."""
        return Following(self._door, run_id, after, self._repeats, self.waiting).forever(wait_s)

    def groups(
        self, run_id: str, batch_id: str | None = None, after: str | None = None, wait_s: float = WAIT_S
    ) -> AsyncIterator[ClosedGroup]:
        """The groups of one batch, until all of them are in; without a batch, those of the run without end."""
        if batch_id is None:
            return self.results(run_id, after, wait_s)
        return Following(self._door, run_id, after, self._repeats, self.waiting).until_closed(batch_id, wait_s)

    async def ack(self, run_id: str, cursors: Sequence[str]) -> int:
        """Deletes results that the trainer has; how many were there."""
        every = self._repeats.with_repeats(run_id, cursors)
        count = await self._persistently(lambda: self._door.ack(run_id, every))
        self._repeats.acknowledged(run_id, every)
        return count

    async def cancel(self, kind: str, name: str) -> CancelAnswer:
        """Cancels a job, group, batch or run by its id."""
        if kind not in KINDS:
            near = closest(kind, KINDS)
            raise ServiceError(f"there is no kind {kind!r}: {f'did you mean {near!r}?' if near else KINDS}", status=422)
        return await self._persistently(lambda: self._door.cancel(kind, name))

    async def pause(self, kind: str, name: str, *, for_s: float = PAUSE_MS / 1000, then: str = "resume") -> PauseAnswer:
        """Pauses a job or run by its id, for at most `for_s`; then it is resumed, or with `expire` its jobs end."""
        try:
            order = msgspec.convert({"for_ms": round(for_s * 1000), "then": then}, PauseOrder)
        except msgspec.ValidationError as error:
            raise ServiceError(f"no such pause: {error}", status=422) from None
        return await self._persistently(lambda: self._door.pause(_pausable(kind), name, order))

    async def resume(self, kind: str, name: str) -> PauseAnswer:
        """Resumes a paused job, or a run with all its jobs."""
        return await self._persistently(lambda: self._door.resume(_pausable(kind), name))

    async def fork(
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
        made = batch if batch is None or isinstance(batch, BatchRequest) else _made(batch, BatchRequest)
        order = _made({"turn": turn, "n": n, "name": group, "priority": priority}, ForkOrder)
        order = msgspec.structs.replace(order, batch=made)
        return await self._persistently(lambda: self._door.fork(name, order))

    async def job(self, name: str) -> JobStatus:
        """The state of a job, and why it waits. A job's id reads run:group:index."""
        return await self._persistently(lambda: self._door.job(name))

    async def timeline(self, name: str) -> Timeline:
        """Every state change of a job, its attempts, and why it waits."""
        return await self._persistently(lambda: self._door.timeline(name))

    async def trajectory(self, name: str) -> Trajectory:
        """The tokens of a job; until its group is acknowledged."""
        return await self._persistently(lambda: self._door.trajectory(name))

    async def turns(self, name: str, after: int = 0) -> LoggedTurns:
        """The finished turns of a job from number `after` on, also while it is in RUN; ask for those behind them with
        `next`. Until its group is acknowledged.
        """
        if not isinstance(after, int) or after < 0:
            raise ServiceError(f"turns are numbered 0, 1, 2 and so on: there are none from {after!r} on", status=422)
        return await self._persistently(lambda: self._door.turns(name, after))

    async def batch(self, name: str) -> BatchStatus:
        """The progress of a batch. A batch's id reads run:batch."""
        return await self._persistently(lambda: self._door.batch(name))

    async def configure_run(self, run_id: str, settings: RunSettings | Mapping[str, Any]) -> RunStatus:
        """Puts weight and quotas in place of those the run had; what is left out is the default."""
        made = settings if isinstance(settings, RunSettings) else _made(settings, RunSettings)
        return await self._persistently(lambda: self._door.configure_run(run_id, made))

    async def runs(self) -> RunsFound:
        """The tenant's runs: what each holds, its settings, and why its groups wait. Those of the cells that its
        `unavailable` names are missing.
        """
        return await self._persistently(self._door.runs)

    async def move_run(self, run_id: str, cell: str, *, within_s: float = 30.0, tenant: str | None = None) -> RunMove:
        """For operators, at a router: has a run continue in another cell. Waits `within_s` until none of its jobs is in
        flight. Where it fails, the same again finishes the move. `tenant`: another one, whose run it is.
        """
        order = {"cell": cell, "within_s": within_s}
        return await self._persistently(lambda: self._door.move("POST", run_id, order, _whose(tenant)))

    async def move_of_run(self, run_id: str, *, tenant: str | None = None) -> RunMove:
        """Says where a run is, or between which cells: `moving`."""
        return await self._persistently(lambda: self._door.move("GET", run_id, {}, _whose(tenant)))

    async def return_run(self, run_id: str, *, lost: bool = False, tenant: str | None = None) -> RunMove:
        """Has a run that has left its cell, and has not arrived, continue there. `lost`: the other one is, for good."""
        query = {**_whose(tenant), "lost": "true" if lost else "false"}
        return await self._persistently(lambda: self._door.move("DELETE", run_id, {}, query))

    async def report(self, run_id: str, batch_id: str) -> ClosedBatch:
        """Yield and cost of a DAPO batch, and the cursor that acknowledges them; there when its groups have ended."""
        status = (await self.batch(f"{run_id}:{batch_id}")).dapo
        if status is None or status.report is None or status.report_cursor is None:
            what = "is no DAPO batch" if status is None else f"is {status.phase}: its report comes after its last group"
            raise ServiceError(f"batch {batch_id!r} of run {run_id!r} {what}", status=409)
        return ClosedBatch(status.report_cursor, status.report)

    async def add_backend(
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
        about = {"protocol": protocol, "model": model, "adapter": adapter}
        return await self._persistently(lambda: self._door.add_backend(pool, address, **about, limit=limit))

    async def announce_policy_version(
        self, pool: str, version: int, mode: str = "keep", weights: str | None = None
    ) -> None:
        """Says which policy version a pool serves from now on. `mode` is keep, drain or abort.

        With `weights`, a directory as the backends see it, the service loads them; `policy` tells how far it is.
        """
        await self._persistently(lambda: self._door.announce_policy_version(pool, version, mode, weights))

    async def policy(self, pool: str) -> PolicyStatus:
        """The version announced last, and how far each backend of the pool is."""
        return await self._persistently(lambda: self._door.policy(pool))

    async def _persistently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await persistently(attempt, patience_s=self.patience_s, waiting=self.waiting)


def _door(url: str, *, token: str | None, uds: str | None, tenant: str, namespace: str) -> Door:
    scheme = url.partition("://")[0]
    if (scheme in {"http", "https"} and _names_server(url)) or url.startswith(("/", ".")):
        return HttpDoor(url, token=token, uds=uds)
    if scheme in SCHEMES:
        from prorl_mq.client.redis import RedisDoor  # with redis and the store, which HTTP needs nothing of
        from prorl_mq.store.server.connection import RedisSettings

        return RedisDoor(RedisSettings(url=url, namespace=namespace), tenant=tenant)
    raise ConfigurationError(
        f"{url!r} is no address of the service: http://HOST:PORT, or one that begins with redis:// or unix://"
    )


def _names_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is none
        return False


def _made(fields: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return convert(dict(fields), kind)
    except Misfit as error:
        raise ServiceError(str(error), status=422) from None


def _whose(tenant: str | None) -> dict[str, str]:
    return {"tenant": tenant} if tenant else {}


def _pausable(kind: str) -> str:
    if kind not in {"job", "run"}:
        raise ServiceError(f"a {kind!r} cannot be paused: jobs and runs can", status=422)
    return kind
