"""Threads as greenlets: a function that blocks hands an awaitable to the loop and sleeps until it is done."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import greenlet

T = TypeVar("T")


async def run(func: Callable[..., T], *args: Any) -> T:
    """Runs a blocking function; while it blocks the loop continues."""
    strand: Any = greenlet.greenlet(func)
    strand.gr_context = contextvars.copy_context()
    result = strand.switch(*args)
    while not strand.dead:
        try:
            value = await result
        except BaseException as error:  # the thread sees what it waited for
            result = strand.throw(error)
        else:
            result = strand.switch(value)
    return result  # type: ignore[no-any-return]


def wait_for(awaitable: Awaitable[T]) -> T:
    """Blocks the thread that calls this."""
    return greenlet.getcurrent().parent.switch(awaitable)  # type: ignore[no-any-return, union-attr]


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            wait_for(self._waited(timeout))
        return self._set

    async def _waited(self, timeout: float | None) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await asyncio.wait({future}, timeout=timeout)


class Thread:
    """`threading.Thread`."""

    def __init__(self, *, target: Callable[[], None], name: str = "", daemon: bool = False) -> None:
        self._target = target
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(run(self._target), name=self._name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def join(self) -> None:
        if self._task is not None:
            wait_for(asyncio.wait({self._task}))
