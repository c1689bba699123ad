"""A cancellation of a call to Redis ends the caller, whatever the client makes of it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from prorl_mq.store.server.connection import cancellable

pytestmark = pytest.mark.anyio


async def _swallows() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


async def _raises_something_else() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError from None


@pytest.mark.parametrize("attempt", [_swallows, _raises_something_else])
async def test_a_cancellation_is_never_lost_in_the_client(attempt: Callable[[], Awaitable[None]]) -> None:
    async def call() -> None:
        await cancellable(attempt)

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_call_that_is_dropped_with_its_loop_raises_nothing() -> None:
    """Python would print it as an ignored exception of nobody."""
    task = asyncio.current_task()
    assert task is not None
    call = cancellable(asyncio.Event().wait)
    call.send(None)
    task.cancel()
    call.close()
    task.uncancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
