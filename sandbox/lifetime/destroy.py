"""The end of a sandbox: all its processes are dead and its directory is gone."""

import asyncio
import signal
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host import process
from sandbox.lifetime import cgroup, label
from sandbox.protocol import SandboxHandle

FRONT_S = 3.0  # a first process without a namespace kills its descendants itself; usually milliseconds
KILLED_S = 30.0


async def destroy(handle: SandboxHandle) -> None:
    """Idempotent. Raises `SandboxError` when the kernel does not let a process or a group go, and leaves the directory
    then.
    """
    directory = Path(handle.directory)
    made = label.read(directory)
    if made is not None and made.sandbox_id != handle.sandbox_id:
        raise SandboxError(f"{directory} is not the directory of sandbox {handle.sandbox_id}; nothing was destroyed")
    ends = [_end_process(handle)] if made is None else [_end_process(handle), _end_server(made)]
    for outcome in await asyncio.gather(*ends, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    if made is None:
        return  # removed already, or never ours
    if made.pid != handle.pid:
        await _end_process(label.handle_of(directory, made))
    await _end_front(made)
    try:
        await asyncio.to_thread(cgroup.remove, [Path(each) for each in made.cgroups])
    except OSError as error:
        raise SandboxError(
            f"a control group of sandbox {handle.sandbox_id} cannot be removed ({error}); {handle.directory} stays, "
            "and a sweep tries again"
        ) from error
    await asyncio.to_thread(label.remove, directory)


async def _end_process(handle: SandboxHandle) -> None:
    with process.opened(handle.pid, handle.pid_started) as descriptor:
        if descriptor is not None and not await _end(handle, descriptor):
            raise SandboxError(
                f"process {handle.pid} of sandbox {handle.sandbox_id} outlives SIGKILL by {KILLED_S:.0f} s; "
                f"it hangs in the kernel (see /proc/{handle.pid}/stack), and {handle.directory} stays until it is gone"
            )


async def _end_server(made: label.Label) -> None:
    """One that stands outside ends by itself after process 1, which goes once the server has reaped its children.

    One that hangs must therefore die first.
    """
    with process.opened(made.server_pid, made.server_started) as descriptor:
        if descriptor is not None and not await process.ended(descriptor, FRONT_S):
            process.send_signal(descriptor, signal.SIGKILL)
            await process.ended(descriptor, KILLED_S)


async def _end_front(made: label.Label) -> None:
    with process.opened(made.front_pid, made.front_started) as descriptor:
        if descriptor is None or (made.pid and await process.ended(descriptor, FRONT_S)):
            return
    await process.end_with_descendants(made.front_pid, made.front_started, KILLED_S)


async def _end(handle: SandboxHandle, descriptor: int) -> bool:
    """Process 1 of a PID namespace takes everything with it; a plain first process is asked to do the same."""
    if handle.kind == "local":
        process.send_signal(descriptor, signal.SIGTERM)
        if await process.ended(descriptor, FRONT_S):
            return True
        return await process.end_with_descendants(handle.pid, handle.pid_started, KILLED_S)
    process.send_signal(descriptor, signal.SIGKILL)
    return await process.ended(descriptor, KILLED_S)
