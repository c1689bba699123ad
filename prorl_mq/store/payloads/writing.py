"""Puts payloads of jobs. One goes by itself unless a commit names it: in Redis by its TTL, in a file by the collection.

RUN alone may import this, by an import contract: its Redis user cannot read sealed fields. Whoever can read those, the
ingress and EVAL, has no way to put them where others read.
"""

import asyncio
import logging
from enum import StrEnum
from typing import Final, NamedTuple

from prorl_mq.clock import monotonic
from prorl_mq.errors import PayloadTooLarge, PayloadUnwritten
from prorl_mq.schema.ids import JobRef, Token, tenant_of
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.limits import REDIS_BYTES, SMALL_BYTES, UNCOMMITTED_TTL_MS
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.payloads.reading import in_thread
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.payloads")
WRITE_S: Final = 60.0  # how long a file system may take for one file
HUNG_S: Final = 60.0  # how long one that has taken longer is not asked again


class PayloadKind(StrEnum):
    """Kinds of payloads."""

    TRAJECTORY = "trajectory"


class StoredPayload(NamedTuple):
    """A payload that waits for the commit that names it."""

    name: str  # a key of Redis, or the text of a `PayloadFile`
    fault: str = ""  # why it is in Redis though it should be in a file

    @property
    def in_file(self) -> bool:
        return named_file(self.name) is not None


async def put(
    store: Store, ref: JobRef, token: Token, kind: PayloadKind, data: bytes, *, direct: bool = False
) -> StoredPayload:
    """Stores a payload of one attempt; `direct`: its trainer reads Redis alone, and sees no file.

    Raises `PayloadTooLarge` for one above `REDIS_BYTES` where there is no directory of files, and `PayloadUnwritten`
    where that takes none now.
    """
    fault = ""
    if len(data) > (REDIS_BYTES if direct else SMALL_BYTES) and store.payloads is not None:
        try:
            name = await _written(store.payloads, tenant_of(ref), data)
        except (OSError, TimeoutError) as error:
            fault = f"{store.payloads.directory}: {await _fault(store.payloads, error)}"
            log.warning("job=%s: its %s of %d bytes goes to Redis: %s", ref, kind, len(data), fault)
        else:
            if name is not None:
                return StoredPayload(str(name))
    if len(data) > REDIS_BYTES:
        refused = PayloadUnwritten if fault else PayloadTooLarge
        raise refused(_too_large(store.payloads, kind, len(data), fault))
    key = store.keys.blob(ref, token, kind)
    await store.put(key, data, ttl_ms=UNCOMMITTED_TTL_MS)
    return StoredPayload(key, fault)


async def put_content(files: PayloadFiles, tenant: str, data: bytes) -> PayloadFile | None:
    """Stores bytes in a file that their tenant can name, and leaves room for trajectories; None where there is no
    directory.

    Raises `OSError` and `TimeoutError`.
    """
    if not await in_thread(lambda: files.there):
        return None
    await in_thread(lambda: files.require_spare(len(data)))
    return await _written(files, tenant, data)


async def put_spare(store: Store, ref: JobRef, data: bytes) -> PayloadFile:
    """Stores bytes that can be done without, in a file alone, and leaves room for what cannot.

    Raises `OSError` or `TimeoutError`, with a text that says why it is not stored. Where one has failed, no other is
    tried for a minute.
    """
    files = store.payloads
    if files is None or not await in_thread(lambda: files.there):
        raise FileNotFoundError(f"{len(data)} bytes need a file, and there is no directory of payloads")
    if monotonic() < files.full_until:
        raise TimeoutError(f"{files.directory} has taken nothing in the last minute")
    try:
        await in_thread(lambda: files.require_spare(len(data)))
        name = await _written(files, tenant_of(ref), data)
    except (OSError, TimeoutError):
        files.full_until = monotonic() + HUNG_S
        raise
    if name is None:
        raise FileNotFoundError(f"there is no {files.directory} any more")
    return name


async def put_file(store: Store, ref: JobRef, data: bytes) -> str:
    """Stores bytes in a file that their job would hold else. Its name; empty where no file takes them."""
    try:
        return str(await put_spare(store, ref, data))
    except (OSError, TimeoutError):
        return ""


async def _fault(files: PayloadFiles, error: Exception) -> str:
    """Why a file was not written, with the free space of a file system that answers."""
    if isinstance(error, TimeoutError):
        return f"it has not answered for {WRITE_S:g} s"
    try:
        return f"{error}; {await in_thread(files.space)}"
    except OSError:
        return str(error)


async def _written(files: PayloadFiles, tenant: str, data: bytes) -> PayloadFile | None:
    """None where there is no directory, and never was one that this process has seen.

    Raises as `write` does, and `TimeoutError`.
    """
    if monotonic() < files.hung_until and len(data) <= REDIS_BYTES:
        raise TimeoutError
    try:
        async with asyncio.timeout(WRITE_S):
            if not files.seen and not await in_thread(lambda: files.there):
                return None
            files.seen = True
            return await in_thread(lambda: files.write(tenant, data))
    except TimeoutError:
        files.hung_until = monotonic() + HUNG_S
        raise


def _too_large(files: PayloadFiles | None, kind: PayloadKind, size: int, fault: str) -> str:
    said = f"a {kind} of {size / (1 << 20):.1f} MiB is too large for Redis, which takes {REDIS_BYTES >> 20} MiB"
    if fault:
        return f"{said}, and cannot be written to a file: {fault}"
    if files is not None:
        return f"{said}: make the directory {files.directory}, on storage that every node sees"
    return f"{said}: reach Redis by a rendezvous file on shared storage, and make a directory `payloads` beside it"
