"""Jobs that wait: for an image, a task family or a node that fails, with the reason. No attempt is counted for it."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.store import breakers
from prorl_mq.store.breakers import BreakerKey, Shared
from prorl_mq.store.store import Store

FRESH_S: Final = 1.0  # how long a look at the breakers is good for
LEAST_MS: Final = 1_000
log = logging.getLogger("workers.stages.postponed")


class Postponed(Exception):
    """The job is put aside for `delay_ms`. `error`: what its own attempt failed by; None: it was not begun.

    `of_node`: the node fails, so that this says nothing about the task family.
    """

    def __init__(self, why: str, delay_ms: int, error: BaseException | None = None, *, of_node: bool = False) -> None:
        super().__init__(why)
        self.delay_ms = delay_ms
        self.error = error
        self.of_node = of_node


class SharedBreakers:
    """The breakers of images and task families, as this process knows them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[BreakerKey, Shared] = {}
        self._told: set[BreakerKey] = set()  # open ones that the log has a line of
        self._until = 0.0
        self._looking = asyncio.Lock()

    async def check(self, *keys: BreakerKey) -> list[BreakerKey]:
        """Raises `Postponed` while one of them is open, unless this job may try; those that it tries."""
        known = await self._look()
        tried: list[BreakerKey] = []
        for seen in [known[key] for key in keys if key in known and known[key].open]:
            allowed = seen.next_ms == 0 and await breakers.let_through(self._store, seen)
            self._until = 0.0
            if not allowed:
                await self.put_back(tried)
                raise postponed(seen)
            tried.append(seen.key)
        return tried

    async def put_back(self, tried: Iterable[BreakerKey]) -> None:
        """Nothing was shown of what a job was let through to try."""
        for key in tried:
            self._until = 0.0
            seen = (await self._look()).get(key)
            if seen is not None:
                await breakers.put_back(self._store, seen)
                self._until = 0.0

    async def failed(self, key: BreakerKey, error: BaseException) -> Shared:
        """Counts a failed attempt; the breaker as it is then."""
        before, self._until = self._known.get(key), 0.0
        seen = await breakers.failed(self._store, key, told(error), before)
        if seen.open and key not in self._told:
            self._told.add(key)
            log.warning("waits: %s", seen.text)
        return seen

    async def succeeded(self, key: BreakerKey) -> None:
        """Costs nothing where nothing has failed lately."""
        if key in await self._look():
            self._until = 0.0
            await breakers.succeeded(self._store, key)

    async def _look(self) -> dict[BreakerKey, Shared]:
        async with self._looking:
            if monotonic() > self._until:
                self._known = await breakers.look(self._store)
                self._told &= {key for key, seen in self._known.items() if seen.open}
                self._until = monotonic() + FRESH_S
            return self._known


def postponed(seen: Shared, error: BaseException | None = None) -> Postponed:
    """Waits differ by a quarter, so that jobs do not come back together."""
    return Postponed(seen.text, round(max(LEAST_MS, seen.wait_ms) * (1 + chance.fraction() / 4)), error)


def counts(error: BaseException, *, in_init: bool) -> bool:
    """True for a failure of infrastructure or of a row; in INIT, where no policy acts, a time-out is one as well."""
    cause = cause_of(error)
    return cause in {Cause.SANDBOX, Cause.NODE, Cause.ROW, Cause.WORKER} or (in_init and cause is Cause.TIMEOUT)


def told(error: BaseException) -> str:
    """The type and message of an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:2000]
