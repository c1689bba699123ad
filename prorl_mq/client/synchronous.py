"""The client of a trainer that runs no event loop: the same calls, run on a loop in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from prorl_mq.client.asynchronous import WAIT_S, AsyncClient
from prorl_mq.client.transport import ClosedBatch, ClosedGroup
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import CancelAnswer, RunStatus
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory

T = TypeVar("T")


class Client:
    """`AsyncClient` for plain code: the same arguments, methods and errors. May be shared by threads."""

    def __init__(self, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(url, **options)
        self._thread = threading.Thread(target=self._loop.run_forever, name="prorl-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def submit(self, batch: BatchRequest | Mapping[str, Any]) -> BatchAccepted:
        return self._run(self._client.submit(batch))

    def results(self, run_id: str, after: str | None = None, wait_s: float = WAIT_S) -> Iterator[ClosedGroup]:
        return self._iterate(self._client.results(run_id, after, wait_s))

    def groups(
        self, run_id: str, batch_id: str | None = None, after: str | None = None, wait_s: float = WAIT_S
    ) -> Iterator[ClosedGroup]:
        return self._iterate(self._client.groups(run_id, batch_id, after, wait_s))

    def ack(self, run_id: str, cursors: Sequence[str]) -> int:
        return self._run(self._client.ack(run_id, cursors))

    def cancel(self, kind: str, name: str) -> CancelAnswer:
        return self._run(self._client.cancel(kind, name))

    def job(self, name: str) -> JobStatus:
        return self._run(self._client.job(name))

    def timeline(self, name: str) -> Timeline:
        return self._run(self._client.timeline(name))

    def trajectory(self, name: str) -> Trajectory:
        return self._run(self._client.trajectory(name))

    def batch(self, name: str) -> BatchStatus:
        return self._run(self._client.batch(name))

    def configure_run(self, run_id: str, settings: RunSettings | Mapping[str, Any]) -> RunStatus:
        return self._run(self._client.configure_run(run_id, settings))

    def runs(self) -> list[RunStatus]:
        return self._run(self._client.runs())

    def report(self, run_id: str, batch_id: str) -> ClosedBatch:
        return self._run(self._client.report(run_id, batch_id))

    def add_backend(self, pool: str, address: str, **about: Any) -> str:
        return self._run(self._client.add_backend(pool, address, **about))

    def announce_policy_version(self, pool: str, version: int, mode: str = "keep", weights: str | None = None) -> None:
        self._run(self._client.announce_policy_version(pool, version, mode, weights))

    def policy(self, pool: str) -> PolicyStatus:
        return self._run(self._client.policy(pool))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also KeyboardInterrupt: the call must not go on in the thread
            future.cancel()
            raise

    def _iterate(self, groups: AsyncIterator[ClosedGroup]) -> Iterator[ClosedGroup]:
        try:
            while (group := self._run(_next(groups))) is not None:
                yield group
        finally:
            if not self._loop.is_closed():
                self._run(_end(groups))


async def _next(groups: AsyncIterator[ClosedGroup]) -> ClosedGroup | None:
    return await anext(groups, None)


async def _end(groups: AsyncIterator[ClosedGroup]) -> None:
    close = getattr(groups, "aclose", None)
    if close is not None:
        with contextlib.suppress(RuntimeError):  # it is still ending after an interrupted step
            await close()
