"""Processes identified by number and start time, because numbers are reused."""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path


def start_time(pid: int) -> str | None:
    """The kernel's clock ticks at which the process started. None: there is no such process, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def is_alive(pid: int, started: str) -> bool:
    """True if this very process lives, not another one under its number."""
    return pid > 0 and start_time(pid) == started


@contextlib.contextmanager
def opened(pid: int, started: str) -> Iterator[int | None]:
    """A descriptor of this very process; None when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OSError, ValueError):
        yield None
        return
    try:
        yield descriptor if is_alive(pid, started) else None
    finally:
        os.close(descriptor)


def send_signal(descriptor: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def resolve(done: asyncio.Future[None]) -> None:
    """Ends a wait for a descriptor: the event loop may call it more than once."""
    if not done.done():
        done.set_result(None)


async def ended(descriptor: int, timeout_s: float) -> bool:
    """Waits until the process behind a descriptor has ended; false when the time is over first."""
    if select.select([descriptor], [], [], 0)[0]:
        return True
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, resolve, done)
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True


def descendants(pid: int) -> list[int]:
    """Every process below this one, as far as the parents' records go."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    for child in list(found):
        found += descendants(child)
    return found


async def end_with_descendants(pid: int, started: str, timeout_s: float) -> bool:
    """Kills this very process and all below it; false when one of them outlives SIGKILL."""
    with opened(pid, started) as descriptor:
        if descriptor is None:
            return True
        below = [(each, start_time(each) or "") for each in descendants(pid)]
        send_signal(descriptor, signal.SIGKILL)  # first, so that it starts nobody else
        gone = [await end_with_descendants(*each, timeout_s) for each in below]
        return await ended(descriptor, timeout_s) and all(gone)
