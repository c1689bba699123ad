"""From a started first process to a sandbox that answers, or to nothing at all."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from sandbox.errors import SandboxError, SandboxStartFailed
from sandbox.host.child_reaper import Collector
from sandbox.isolators.launch import words_of
from sandbox.isolators.sealed import unsealed
from sandbox.lifetime import cgroup, client, destroy, label
from sandbox.protocol import SandboxHandle

START_S = 20.0


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A first process that was started but has not answered yet."""

    handle: SandboxHandle
    front: int  # the child of ours: to be reaped
    stderr: int  # where the isolator complains


def start_failed(owner: str, words: str) -> SandboxStartFailed:
    return SandboxStartFailed(f"no sandbox for {owner}: {words}")


def abandon(directory: Path) -> None:
    """Removes what a start that failed has left, where no process of it is known. A sweep tries again what resists."""
    made = label.read(directory)
    with contextlib.suppress(OSError):
        cgroup.remove([Path(each) for each in made.cgroups] if made is not None else [])
        label.remove(directory)


async def bring_up(
    start: Callable[[], Started],
    settings: Callable[[SandboxHandle], client.Settings],
    owner: str,
    collector: Collector,
    *,
    sealed: bool,
) -> client.SocketSandbox:
    """Runs `start` (it blocks) in a thread, then configures the server. On failure or cancellation nothing is left.

    `sealed`: a sandbox whose children are not is a failure.
    """
    try:
        started = await _finished(start, collector)
    except OSError as error:  # its directory cannot be made: a full disk, or one that is away
        raise start_failed(owner, str(error)) from error
    sandbox = client.SocketSandbox(started.handle)
    try:
        async with asyncio.timeout(START_S):
            status = await sandbox.configure(settings(started.handle))
        if sealed and (fault := unsealed(status, started.handle.pid)):
            raise SandboxError(fault)  # noqa: TRY301 - destroyed as any other that failed
    except BaseException as error:
        words = words_of(started.stderr)
        await asyncio.shield(destroy.destroy(started.handle))
        if isinstance(error, SandboxError | TimeoutError):
            raise start_failed(owner, words or str(error) or f"no answer in {START_S:.0f} s") from error
        raise
    finally:
        os.close(started.stderr)
    return sandbox


async def _finished(start: Callable[[], Started], collector: Collector) -> Started:
    """A thread cannot be cancelled, so a cancelled caller waits for it and undoes what it did."""
    work = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        started = await asyncio.shield(work)
    except asyncio.CancelledError:
        started = await work
        collector.watch(started.front)
        os.close(started.stderr)
        await asyncio.shield(destroy.destroy(started.handle))
        raise
    collector.watch(started.front)
    return started
