"""The two interrupts of a user: the first drains, the second ends at once."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruptible(hurry: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM cancels this task, so that its contexts close; each further one calls `hurry`."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            hurry()
        else:
            asked = True
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
