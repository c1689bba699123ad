"""A node's keeper on its socket: hands out warm sandboxes, watches workers, and reports its counts."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from sandbox.keeper import place
from sandbox.keeper.pool import WarmPool
from sandbox.keeper.watching import Watching, WorkerStart, opened
from sandbox.keeper.wire import ACKNOWLEDGED, Count, Counts, Given, Take, Watched, WatchWorker
from sandbox.lifetime import label
from sandbox.lifetime.owner import OwnerKind, parse
from sandbox.protocol import SandboxHandle, SandboxProvider


class Keeper:
    """One per node and service; only the holder of its place runs it."""

    def __init__(self, provider: SandboxProvider, state_dir: Path, service: str) -> None:
        self.pool = WarmPool(provider, state_dir, service)
        self.watching = Watching()
        self._kept_open: set[asyncio.StreamWriter] = set()
        self.leaked = 0  # sandboxes that were destroyed because nobody owned them
        self._state_dir = state_dir
        self._service = service
        self._node = provider.node

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Holds the node's place, adopts what a dead keeper left, and answers. Destroys the pool at the end."""
        directory = place.place(self._state_dir, self._service, self._node)
        async with place.occupied(directory):
            await self.pool.adopt()
            (directory / label.SOCKET).unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._connected, sock=label.listen(directory))
            try:
                async with asyncio.TaskGroup() as group:
                    tending = group.create_task(self.pool.run(), name="pool")
                    yield
                    tending.cancel()
            finally:
                server.close()
                self.watching.close()
                for writer in self._kept_open:
                    writer.close()
                (directory / label.SOCKET).unlink(missing_ok=True)
                await asyncio.shield(self.pool.aclose())

    async def counts(self) -> Counts:
        start_ms, hand_out_ms = self.pool.medians_ms
        return Counts(
            live=await asyncio.to_thread(self._live),
            warm=self.pool.warm,
            warm_hits=self.pool.hits,
            cold_starts=self.pool.misses,
            leaked_destroyed=self.leaked,
            start_ms_p50=start_ms,
            hand_out_ms_p50=hand_out_ms,
            watched=len(self.watching),
        )

    def _live(self) -> int:
        owners = [(parse(made.owner), made) for _, made in label.labelled(self._state_dir) if made.node == self._node]
        return sum(bool(owner and owner[:2] == (OwnerKind.JOB, self._service) and made.alive) for owner, made in owners)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer with another protocol, such as another version, gets no answer."""
        try:
            request = msgspec.json.decode(await reader.readline(), type=Take | Count | WatchWorker)
            if isinstance(request, Count):
                await _send(writer, await self.counts())
            elif isinstance(request, WatchWorker):
                await self._watch(WorkerStart(request.name, request.started_ms), reader, writer)
            else:
                await self._hand_out(request, reader, writer)
        except (OSError, ValueError, msgspec.DecodeError, RecursionError):
            pass
        finally:
            writer.close()

    async def _hand_out(self, request: Take, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handle: SandboxHandle | None = None
        if request.kind == self.pool.kind:
            handle = await self.pool.take(request.shape, request.owner)
        acknowledged = False
        try:
            await _send(writer, Given(handle=handle))
            acknowledged = handle is None or await reader.read(1) != b""
        finally:
            if handle is not None and not acknowledged:
                self.pool.give_up(handle)

    async def _watch(self, worker: WorkerStart, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        descriptor = opened(writer.get_extra_info("socket"))
        try:
            await _send(writer, Watched(seen=descriptor is not None))
            acknowledged = await reader.read(1) == ACKNOWLEDGED
            if acknowledged and descriptor is not None:
                self.watching.follow(worker, os.dup(descriptor))
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._kept_open.add(writer)
        try:
            await reader.read()  # until the worker has ended: it asks the next keeper when this one is gone
        finally:
            self._kept_open.discard(writer)


async def _send(writer: asyncio.StreamWriter, answer: Given | Counts | Watched) -> None:
    writer.write(msgspec.json.encode(answer) + b"\n")
    await writer.drain()
