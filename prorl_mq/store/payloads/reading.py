"""Reads payloads, wherever they lie: in Redis under a key of their job, or in a file under their content's name."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from prorl_mq.clock import monotonic
from prorl_mq.errors import PayloadUnavailable
from prorl_mq.schema.ids import tenant_of
from prorl_mq.store.payloads.files import PayloadDamaged, PayloadFiles
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.store import Store

T = TypeVar("T")
READ_S: Final = 5.0  # how long a file that is named is looked for
LOOK_S: Final = 0.05  # between the first two looks; then twice as long each time, up to half a second
# Threads of their own: a file system that hangs keeps four of them, and none that other work needs.
_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="payloads")


async def get(store: Store, owner: str, name: str, *, within_s: float = READ_S) -> bytes | None:
    """A payload by its name, for an owner: any reference that begins with a tenant. None if Redis has no such key.

    Raises `PayloadUnavailable` for a file that does not appear in time.
    """
    file = named_file(name)
    if file is None:
        data: bytes | None = await store.read("GET", name)
        return data
    if store.payloads is None:
        raise PayloadUnavailable(
            f"the payload {file} is in a file, and this process knows no directory of them: reach Redis by the "
            "deployment's rendezvous file or by its Unix socket, or fetch it over HTTP"
        )
    return await _read(store.payloads, tenant_of(owner), file, monotonic() + within_s)


async def in_thread(act: Callable[[], T]) -> T:
    """Runs what waits for the file system."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, act)


async def _read(files: PayloadFiles, tenant: str, file: PayloadFile, give_up: float) -> bytes:
    """Opens it again and again while a network file system may still show nothing, or a part."""
    wait_s, again = LOOK_S, False
    while True:
        try:
            async with asyncio.timeout(max(LOOK_S, give_up - monotonic())):
                return await in_thread(partial(files.read, tenant, file, again=again))
        except (OSError, TimeoutError, PayloadDamaged) as error:
            if monotonic() + wait_s > give_up:
                raise PayloadUnavailable(_unavailable(files, tenant, file, error)) from error
        await asyncio.sleep(wait_s)
        wait_s, again = min(2 * wait_s, 0.5), True


def _unavailable(files: PayloadFiles, tenant: str, file: PayloadFile, error: Exception) -> str:
    what = str(error) if isinstance(error, PayloadDamaged) else getattr(error, "strerror", "") or "it does not answer"
    if isinstance(error, FileNotFoundError) and not files.there:
        return f"{files.directory} is not on this host, and a payload is in it: mount it; it is looked for again"
    return (
        f"the payload {files.path(tenant, file)} cannot be read: {what}; check that file system on this host, "
        "and with `prorl-mq fsck` whether others are missing"
    )
