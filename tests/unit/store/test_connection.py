"""A cancellation of a call to Redis ends the caller, whatever the client makes of it."""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable

import pytest
from redis.exceptions import ResponseError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store.server import connection
from prorl_mq.store.server.connection import cancellable, patiently

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


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT, errno.EMFILE])
async def test_a_fault_of_this_machine_is_no_outage_of_redis(
    monkeypatch: pytest.MonkeyPatch, number: int, hidden: bool
) -> None:
    """It is told at once, in its own words. The control waits, and says that Redis does not answer."""

    async def fails() -> None:
        raise OSError(number, "of this machine")

    if hidden:
        monkeypatch.setattr(connection, "OUTAGES", (*connection.OUTAGES, OSError))
    with pytest.raises(
        RedisUnavailable if hidden else OSError, match="Redis has not answered" if hidden else "of this"
    ):
        await patiently(fails, outage_ms=50)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError("refused"), "Redis has not answered for 0 s (refused); start it or check its address"),
        (
            ResponseError("NOREPLICAS none"),
            "Redis has refused this for 0 s (NOREPLICAS none); let a replica follow it again",
        ),
        (ResponseError("MISCONF no space"), "Redis has refused this for 0 s (MISCONF no space); its log says more"),
    ],
)
async def test_a_server_that_refuses_is_not_said_to_be_away(error: Exception, said: str) -> None:
    """Who reads that it has not answered looks for a server that is there."""

    async def attempt() -> None:
        raise error

    with pytest.raises(RedisUnavailable) as raised:
        await patiently(attempt, outage_ms=0)
    assert str(raised.value) == said
