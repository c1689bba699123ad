"""Patience with a connection that was cut: what may be asked twice is asked again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sandbox.errors import LinkCut, NotNow

AWAY_S: Final = 60.0  # that a sandbox server may be away without harm to a rollout
FIRST_S, LONGEST_S = 0.1, 2.0
T = TypeVar("T")


def always(_: LinkCut) -> bool:
    return True


async def living(asked: Awaitable[T]) -> T:
    """The answer of a sandbox that is there: a server that lets nobody in now, or a token that is being changed, is
    waited for as a network is. Only a sandbox that is still to be made can wait with its job.
    """
    try:
        return await asked
    except NotNow as why:
        raise LinkCut(str(why), unsent=True) from why


async def patiently(
    ask: Callable[[], Awaitable[T]], for_s: float, again: Callable[[LinkCut], bool] = always, most_s: float = 0.0
) -> T:
    """Asks again, at growing distances, after each cut for which `again` is true, for so long. Raises the last one.

    `most_s`: where it is more than `for_s`, that is counted from when the machine was last reached, but no longer than
    `most_s` from now.
    """
    clock = asyncio.get_running_loop().time
    give_up, end, pause_s = clock() + for_s, clock() + max(for_s, most_s), FIRST_S
    while True:
        try:
            return await ask()
        except LinkCut as cut:
            if cut.reached:
                give_up, pause_s = min(end, clock() + for_s), FIRST_S
            if not again(cut) or clock() + pause_s > give_up:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_S, pause_s * 2)
