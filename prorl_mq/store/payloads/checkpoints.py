"""Checkpoints of sandboxes: a small one in its job's hash, a large one in a file that its job's hash names.

A file begins with random bytes, so that no two checkpoints have one name: whoever has written one may remove it once
its job names another. That takes `SETTLED_S` longer, since Redis may lose its last second and name it again. What is
not removed so, as by a worker that dies, is collected as every file is that nothing names. So are those of a job that
was forked, since its forks may name what it names no more.
"""

import secrets
from collections import deque
from functools import partial
from typing import Final, NamedTuple

from prorl_mq.clock import monotonic
from prorl_mq.errors import PayloadUnavailable, RedisUnavailable
from prorl_mq.schema.ids import JobRef, tenant_of
from prorl_mq.store import jobs
from prorl_mq.store.payloads import reading, writing
from prorl_mq.store.payloads.limits import SETTLED_S, SMALL_BYTES
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.store import Store

RANDOM_BYTES: Final = 16  # in front of the archive
AT_ONCE_BYTES: Final = 64 << 20  # that one process writes at a time: it has them in memory


class CheckpointSkipped(Exception):
    """A checkpoint is not kept; the text says why."""


class KeptCheckpoint(NamedTuple):
    """A checkpoint that waits for the record that names it: the archive itself, or the name of its file."""

    data: bytes
    file: str = ""


class _Replaced(NamedTuple):
    ref: JobRef
    file: PayloadFile
    at: float  # on this process's clock


class CheckpointArchives:
    """The archives that one process writes and reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._replaced: deque[_Replaced] = deque()
        self._under_way = 0  # bytes

    async def put(self, ref: JobRef, data: bytes) -> KeptCheckpoint:
        """Returns once it may be named: a small one at once, whatever the file system does.

        Raises `CheckpointSkipped`.
        """
        if len(data) <= SMALL_BYTES:
            return KeptCheckpoint(data)
        if self._under_way + len(data) > AT_ONCE_BYTES:
            raise CheckpointSkipped(f"{self._under_way} bytes of others are being written")
        self._under_way += len(data)
        try:
            await self._remove()
            name = await writing.put_spare(self._store, ref, secrets.token_bytes(RANDOM_BYTES) + data)
        except (OSError, TimeoutError, RedisUnavailable) as error:
            raise CheckpointSkipped(str(error)) from error
        finally:
            self._under_way -= len(data)
        return KeptCheckpoint(b"", str(name))

    async def get(self, ref: JobRef, name: str) -> bytes:
        """The archive in a file. Raises `PayloadUnavailable`, once it has been looked for some seconds."""
        data = await reading.get(self._store, ref, name)
        if data is None:
            raise PayloadUnavailable(f"{name} is not the name of a file")
        return data[RANDOM_BYTES:]

    async def put_routes(self, ref: JobRef, data: bytes) -> str:
        """The name of a file for the routes of one completion; empty where no file takes them. None is removed before
        it is old: it has the same name whoever writes it.
        """
        return await writing.put_file(self._store, ref, data)

    async def routes(self, ref: JobRef, name: str) -> bytes | None:
        """The routes in such a file; None once it is gone."""
        try:
            return await reading.get(self._store, ref, name)
        except PayloadUnavailable:
            return None

    def let_go(self, ref: JobRef, name: str) -> None:
        """Says that a job names this file no more; it is removed when a later large one is written."""
        if file := named_file(name):
            self._replaced.append(_Replaced(ref, file, monotonic()))

    async def _remove(self) -> None:
        files = self._store.payloads
        while self._replaced and self._replaced[0].at + SETTLED_S <= monotonic() and files is not None:
            each = self._replaced.popleft()
            if await jobs.lends(self._store, each.ref) is False:
                await reading.in_thread(partial(files.remove, tenant_of(each.ref), each.file))
