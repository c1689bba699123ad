"""Jobs that wait: for an image, a task family or a node that fails, with the reason. No attempt is counted for it."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.schema.codec import sendable
from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.store import breakers
from prorl_mq.store.breakers import BreakerKey, Shared
from prorl_mq.store.store import Store

FRESH_S: Final = 1.0  # how long a look at a breaker is good for
REMEMBERED: Final = 1_000  # breakers
LEAST_MS: Final = 1_000
log = logging.getLogger("workers.postponed")


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
        self._until: dict[BreakerKey, float] = {}  # how long the look at each is good for
        self._looking = asyncio.Lock()

    async def check(self, *keys: BreakerKey, later: BreakerKey | None = None) -> list[BreakerKey]:
        """Raises `Postponed` while one of them is open, unless this job may try; those that it tries. `later`: of a
        stage to come, which this job tries only where no job waits in that stage.
        """
        asked = keys if later is None else (*keys, later)
        known = await self._look(*asked)
        tried: list[BreakerKey] = []
        for seen in [known[key] for key in asked if key in known and known[key].open]:
            ready = seen.untried if seen.key == later else seen.next_ms == 0
            allowed = ready and await breakers.let_through(self._store, seen)
            self._until.pop(seen.key, None)
            if not allowed:
                await self.put_back(tried)
                raise postponed(seen)
            tried.append(seen.key)
        return tried

    async def put_back(self, tried: Iterable[BreakerKey]) -> None:
        """Nothing was shown of what a job was let through to try."""
        for key in tried:
            self._until.pop(key, None)
            seen = (await self._look(key)).get(key)
            if seen is not None:
                await breakers.put_back(self._store, seen)
                self._until.pop(key, None)

    async def failed(self, key: BreakerKey, error: BaseException) -> Shared:
        """Counts a failed attempt; the breaker as it is then."""
        seen = await breakers.failed(self._store, key, told(error), self._known.get(key))
        self._until.pop(key, None)
        if seen.open and key not in self._told:
            self._told.add(key)
            log.warning("waits: %s", seen.text)
        return seen

    async def succeeded(self, key: BreakerKey) -> None:
        """Costs nothing where nothing has failed lately."""
        if key in await self._look(key):
            self._until.pop(key, None)
            await breakers.succeeded(self._store, key)

    async def _look(self, *keys: BreakerKey) -> dict[BreakerKey, Shared]:
        """Those of these that have failed lately: others are none of this job's business."""
        now = monotonic()
        for key in keys:
            if now > self._until.get(key, 0.0):
                break
        else:
            return self._of(keys)
        async with self._looking:
            old = [key for key in keys if monotonic() > self._until.get(key, 0.0)]
            if old:
                found = await breakers.look_at(self._store, old)
                surplus = self._until.keys() - {*keys} if len(self._until) > REMEMBERED else ()
                self._forget([*old, *surplus])
                self._known |= found
                self._told &= {key for key in self._told if key not in old or (key in found and found[key].open)}
                self._until |= dict.fromkeys(old, monotonic() + FRESH_S)
            return self._of(keys)

    def _of(self, keys: Iterable[BreakerKey]) -> dict[BreakerKey, Shared]:
        return {key: self._known[key] for key in keys if key in self._known} if self._known else {}

    def _forget(self, keys: Iterable[BreakerKey]) -> None:
        for key in keys:
            self._known.pop(key, None)
            self._until.pop(key, None)


def postponed(seen: Shared, error: BaseException | None = None) -> Postponed:
    """Waits differ by a quarter, so that jobs do not come back together."""
    return Postponed(seen.text, round(max(LEAST_MS, seen.wait_ms) * (1 + chance.fraction() / 4)), error)


def counts(error: BaseException, *, in_init: bool) -> bool:
    """True for a failure of infrastructure or of a row; in INIT, where no policy acts, a time-out is one as well."""
    cause = cause_of(error)
    return cause in {Cause.SANDBOX, Cause.NODE, Cause.ROW, Cause.WORKER} or (in_init and cause is Cause.TIMEOUT)


def told(error: BaseException) -> str:
    """The type and message of an exception in one line, fit to be sent."""
    return sendable(f"{type(error).__name__}: {' '.join(words_of(error).split())}")[:2000]


def words_of(error: BaseException) -> str:
    """The message of an exception, whose own code may fail."""
    try:
        return sendable(str(error))
    except Exception:
        return "its message cannot be made"
