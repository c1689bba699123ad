"""Locks on files that processes share by inheritance: held until the last duplicate of the descriptor is closed."""

import asyncio
import fcntl

from sandbox.errors import SandboxError


async def lock(descriptor: int, *, exclusive: bool) -> None:
    """Waits for the lock. One that is held already is converted, and others may have it in between.

    The waiting is done by the program `flock`, on a duplicate of the descriptor: neither a thread nor a poll.
    """
    if try_lock(descriptor, exclusive=exclusive):
        return
    kind = "--exclusive" if exclusive else "--shared"
    try:
        waiter = await asyncio.create_subprocess_exec("flock", kind, str(descriptor), pass_fds=(descriptor,))
    except FileNotFoundError:
        raise SandboxError("the program flock (Debian's package util-linux) is missing: install it") from None
    try:
        code = await waiter.wait()
    except asyncio.CancelledError:
        waiter.kill()
        await waiter.wait()
        raise
    if code != 0:
        raise SandboxError(f"flock {kind} ended with exit code {code}")


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
