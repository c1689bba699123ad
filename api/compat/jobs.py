"""One job from its submission to its answer, found again by a caller that sends the same call.

A job that no caller waits for continues: its caller may come back with the same id. A call under a new id for the same
sample ends it first, because its caller has given it up.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Final

from api.compat.arrivals import Arrival, Arrivals, Gone
from api.compat.clients import CompatClient
from api.compat.tasks import CompatRollout, batch, id_key
from prorl_mq.errors import Conflict, NotFound, UnknownDataSource
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import batch_ref, group_ref
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import cancel as cancellation
from prorl_mq.service import submit
from prorl_mq.store import batches, families, groups, results
from prorl_mq.store.store import Store

PAGE: Final = 32
DEAD_S: Final = 20.0  # how long a cancel or stop waits: below the 30 s that a trainer waits for its answer
KEPT_MS: Final = 3_600_000  # how long a result waits for its caller to come back while others are answered


class FunctionNotRegisteredError(Exception):
    """No worker runs such tasks; the name is the contract's."""


class CompatJobs:
    """The jobs of all clients of one process."""

    def __init__(self, store: Store, arrivals: Arrivals, *, timeout_s: int) -> None:
        self._store = store
        self._arrivals = arrivals
        self._timeout_s = timeout_s

    @contextlib.asynccontextmanager
    async def rolled_out(self, client: CompatClient, call: CompatRollout) -> AsyncIterator[Arrival]:
        """The closed group of a call. It can be found again until `forget`.

        Raises `FunctionNotRegisteredError`, `InvalidTask`, `OverQuota` or `Stopped`.
        """
        for number in itertools.count():
            name = f"{call.name}.{number}"
            if not self._arrivals.take(client.run, name):
                continue  # another caller with the same id and body waits for that one
            try:
                await self._submit(client, call, name)
                try:
                    arrival = await self._arrivals.wait(client.run, name)
                except Gone:
                    continue
                yield arrival
                return
            finally:
                self._arrivals.give_back(client.run, name)

    async def forget(self, client: CompatClient, arrivals: Sequence[Arrival]) -> None:
        """Deletes what was answered, or will never be asked for."""
        await results.acknowledge(self._store, client.run, [arrival.cursor for arrival in arrivals])
        await batches.erase(self._store, [batch_ref(client.run, arrival.record.batch_id) for arrival in arrivals])

    async def forget_all(self, client: CompatClient, *, idle_ms: int = 0) -> None:
        """Deletes results that nobody waits for, and has waited for since they were there; the oldest first."""
        last = str(await self._store.now_ms() - idle_ms)
        while True:
            awaited = self._arrivals.awaited(client.run)
            page = await results.collect(self._store, client.run, limit=PAGE)
            found = [Arrival(each.cursor, decode(each.record, GroupRecord)) for each in page]
            old = [each for each in found if results.before(each.cursor, last) and each.record.group_id not in awaited]
            if not old:
                return
            await self.forget(client, old)

    async def cancel(self, client: CompatClient, job_id: str) -> None:
        """Ends every job that was sent with this id, if there is one, and waits until it is dead."""
        key = id_key(job_id)
        names = [name for name in await self.open(client) if key in name]
        for name in names:
            await self._end(client, name)
        await self.dead(client, names)

    async def dead(self, client: CompatClient, names: Sequence[str]) -> None:
        """Returns when jobs that were cancelled are over, or after a time that a caller will wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEAD_S):
                for name in names:
                    await self._closed(client, name)

    async def open(self, client: CompatClient) -> list[str]:
        """The names of a client's jobs that have not closed."""
        return [ref.rpartition(":")[2] for ref in await groups.of_run(self._store, client.run)]

    async def _closed(self, client: CompatClient, name: str) -> None:
        """Deletes the finished result that nobody else waits for."""
        while not self._arrivals.take(client.run, name):
            if await self._arrivals.decided(client.run, name):
                return
        try:
            with contextlib.suppress(Gone):
                await self.forget(client, [await self._arrivals.wait(client.run, name)])
        finally:
            self._arrivals.give_back(client.run, name)

    async def _submit(self, client: CompatClient, call: CompatRollout, name: str) -> None:
        store = self._store
        if await groups.exists(store, group_ref(client.run, name)):
            return
        schema = await self._schema(call.data_source)
        if call.trajectory_id is not None:
            await self._supersede(client, call)
        request = batch(call, schema, run_id=client.run_id, name=name, timeout_s=self._timeout_s)
        with contextlib.suppress(Conflict):  # another process was faster: then it is there
            await submit.accept(store, client.tenant, request)

    async def _schema(self, source: str) -> Schema:
        try:
            return (await families.load(self._store, [source]))[source]
        except UnknownDataSource:
            raise FunctionNotRegisteredError(f"Dataset type {source} is not registered") from None

    async def _supersede(self, client: CompatClient, call: CompatRollout) -> None:
        """Ends jobs of the same sample that were sent under other ids and that nobody waits for."""
        awaited, same_id = self._arrivals.awaited(client.run), id_key(call.job_id)
        for name in await self.open(client):
            if name.startswith(call.sample_key) and same_id not in name and name not in awaited:
                await self._end(client, name)
                await self._closed(client, name)

    async def _end(self, client: CompatClient, name: str) -> None:
        with contextlib.suppress(NotFound):
            await cancellation.cancel(self._store, "group", group_ref(client.run, name))
