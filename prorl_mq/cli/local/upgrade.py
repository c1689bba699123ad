"""`prorl-mq upgrade`: holds admission, empties the stages, and gives the namespace to releases of another protocol.

To hold admission is to have its duty: the verb that admits does nothing for anybody else, whatever release that is. A
command that is killed loses the duty with its lease, and the service admits again.
"""

import argparse
import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.looking import service_redis
from prorl_mq.cli.up import say
from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.schema.messages import Stage
from prorl_mq.store import gauges
from prorl_mq.store.core import LEAST
from prorl_mq.store.gauges import Gauges
from prorl_mq.store.runs import UPGRADE
from prorl_mq.store.store import ADMIT, Store

FAULTS = (ConfigurationError,)
LEASE_MS: Final = 5_000
LOOK_S: Final = 0.25
SAY_S: Final = 5.0  # between two remarks on what is left
TRIES: Final = 100  # to take the duty from a process that renews it
KEPT: Final = "the namespace is as it was, and admission continues"

Say = Callable[[str], None]


async def run(given: argparse.Namespace) -> int:
    async with service_redis(given) as store:
        store.name = f"{UPGRADE}{socket.gethostname()}-{os.getpid()}"
        with interruptible(lambda: os._exit(130)):
            to = given.protocol and str(given.protocol)
            await upgrade(store, to, say=say)
    return 0


async def upgrade(store: Store, to: str | None, *, say: Say, least: str = LEAST) -> None:
    """Without `to`, it holds the empty stages until it is cancelled. Raises `ConfigurationError` for a protocol that
    cannot be switched to here, and `ProrlError` where admission is lost.
    """
    seen = await store.spoken()
    if to == seen:
        say(f"the namespace speaks protocol {to} already: replace its processes one by one, without this command")
        return
    if to is not None and (why := refusal(seen, to, speaks=store.protocol, least=least)):
        raise ConfigurationError(why)
    store.protocol = seen  # until the switch: what is done here means the same in each
    hold = Hold(store)
    try:
        await hold.take()
        say("admission is held; what is submitted now waits in the backlog")
        await _while_held(hold, _emptied(store, say))
        if to is None:
            say("replace the processes now; Ctrl-C gives admission back")
            await hold.keeping()
        await _switched(store, hold, seen, str(to), say)
    except BaseException:  # its end gives admission back
        await store.resign(ADMIT)
        raise


def refusal(seen: str, to: str, *, speaks: str, least: str) -> str:
    """Why a release that speaks one protocol, and leaves what those from `least` on read, cannot switch; or ''."""
    newest = max(seen, to, key=int)
    if int(newest) > int(speaks):
        return (
            f"from protocol {seen} to {to}: this release speaks {speaks} and knows nothing of {newest}; use the "
            f"`prorl-mq upgrade` of a release that speaks {newest}"
        )
    if int(to) < int(least):
        return (
            f"from protocol {seen} to {to}: what waits here, a release of protocol {to} would read wrongly; this one "
            f"can go back to {least} at most. Let everything end and be acknowledged, then use another namespace "
            "(PRORL_NAMESPACE)"
        )
    return ""


class Hold:
    """The duty to admit, taken from a living process and kept."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._beat = 0

    async def take(self) -> None:
        seen = ""
        for _ in range(TRIES):
            seen = await self._ask(seen)
            if seen == "held":
                return
        raise ProrlError(
            f"admission could not be held: {seen.partition(chr(9))[0]} renews its duty all the time; try again"
        )

    async def keep(self) -> None:
        if await self._ask("") != "held":
            raise ProrlError(
                f"admission was lost: for {LEASE_MS / 1000:.0f} s this process stood still, or Redis was away; {KEPT}. "
                "Try again"
            )

    async def keeping(self) -> NoReturn:
        """Renews it until it is cancelled or lost."""
        while True:
            await self.keep()
            await asyncio.sleep(LOOK_S)

    async def _ask(self, seen: str) -> str:
        self._beat += 1
        return await self.store.hold(ADMIT, lease_ms=LEASE_MS, beat=self._beat, seen=seen)


async def _while_held(hold: Hold, work: Coroutine[Any, Any, None]) -> None:
    """The work, however long a look of it takes on a busy machine. Raises `ProrlError` once admission is lost."""
    tasks = asyncio.create_task(work), asyncio.create_task(hold.keeping())
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _emptied(store: Store, say: Say) -> None:
    began, said_at = monotonic(), float("-inf")
    while True:
        now = await gauges.read(store)
        if not sum(now.in_flight_by_tenant.values()):
            say(f"the stages are empty after {monotonic() - began:.0f} s")
            return
        if monotonic() - said_at > SAY_S:
            say(f"in flight: {left(now)}")
            said_at = monotonic()
        await asyncio.sleep(LOOK_S)


def left(now: Gauges) -> str:
    """Jobs that are still in flight, and what keeps them there."""
    parts = [f"{sum(now.in_flight_by_tenant.values())} jobs"]
    if now.paused:
        parts.append(f"{now.paused} of them paused: resume or cancel them")
    waiting = {each.stage: each for each in now.stages if each.load.queued or each.load.held}
    parts += [f"{stage}: no worker is alive" for stage in Stage if stage in waiting and not waiting[stage].workers]
    return "; ".join(parts)


async def _switched(store: Store, hold: Hold, seen: str, to: str, say: Say) -> None:
    await hold.keep()
    answer = await store.switch(seen=seen, to=to)
    if answer not in {"switched", "already"}:
        raise ProrlError(f"the namespace was not switched: {answer}; {KEPT}. Try again")
    say(
        f"switched from protocol {seen} to {to}: processes of protocol {seen} are refused from now on. Stop them, and "
        f"start the release that speaks {to}; what waits, and results that nobody has read, are there"
    )
