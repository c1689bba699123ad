"""The breakers of images and task families: what failed often in a row waits, and is tried again after a back-off.

A family has one for each tenant and stage: what a tenant's rows do to it is not another tenant's, and a scorer that
fails is not seen in INIT. An image has one. There is none for what works: a success removes it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from redis.exceptions import OutOfMemoryError

from prorl_mq import chance
from prorl_mq.rules import breaker as rules
from prorl_mq.rules.breaker import SHARED, Breaker
from prorl_mq.schema.codec import sendable
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

FORGET_MS: Final = 3600 * 1000  # after the last failure
WHY_CHARS: Final = 500
NAME_CHARS: Final = 300  # of a longer name the first ones and a hash are kept
MOST = 1_000  # breakers that are kept; the oldest are forgotten then: of images before families, open ones last
FACTS: Final = ("", "|breaker", "|why")  # what follows its text in the names of a breaker's fields
IMAGE, FAMILY = "image", "family"
NEXT_TRY: Final = "; next try in "


class BreakerKey(NamedTuple):
    """An image, or a task family of one tenant in one stage."""

    name: str
    stage: Stage | None = None  # None: an image
    tenant: str = ""

    @property
    def text(self) -> str:
        """As Redis has it: image:NAME or family:STAGE:TENANT:NAME. A bar in it would lead to another one's fields."""
        name = self.name.replace("%", "%25").replace("|", "%7C")
        return f"{FAMILY}:{self.stage}:{self.tenant}:{name}" if self.stage else f"{IMAGE}:{name}"

    @property
    def kind(self) -> str:
        return FAMILY if self.stage else IMAGE

    @property
    def said(self) -> str:
        """For people."""
        return f"family {self.name} in {self.stage}" if self.stage else f"image {self.name}"


class Shared(NamedTuple):
    """A breaker as it was looked at, at Redis's `now_ms`."""

    key: BreakerKey
    breaker: Breaker
    why: str  # the last error
    last_ms: int  # when it came
    now_ms: int

    @property
    def open(self) -> bool:
        """True if its jobs wait; one of them may try now and then."""
        return self.breaker.openings > 0

    @property
    def next_ms(self) -> int:
        """Until the next try."""
        return max(0, self.breaker.until_ms - self.now_ms)

    @property
    def untried(self) -> bool:
        """True if its own jobs would have tried by now, so that none of them waits."""
        return self.now_ms > self.breaker.until_ms + 2 * SHARED.longest_ms

    @property
    def wait_ms(self) -> int:
        """The time for which a job is put aside: while another one tries, no longer than the last back-off."""
        back_off_ms = min(SHARED.longest_ms, SHARED.back_off_ms << min(max(0, self.breaker.openings - 1), 8))
        return min(self.next_ms, back_off_ms) if self.breaker.trial else self.next_ms

    @property
    def text(self) -> str:
        """The reason why its jobs wait, with the whole of the last error: for its tenant and for operators."""
        return f"{self._head}: {self.why}{NEXT_TRY}{self.next_ms / 1000:.0f} s"

    @property
    def brief(self) -> str:
        """The same with the error's type alone, which every tenant may see."""
        return f"{self._head}: {self.why.partition(':')[0]}{NEXT_TRY}{self.next_ms / 1000:.0f} s"

    @property
    def _head(self) -> str:
        count = self.breaker.failures
        return f"{self.key.said} failed {count} times of {count}"


def image(name: str) -> BreakerKey:
    if len(name) > NAME_CHARS:
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        name = f"{name[:NAME_CHARS]}... ({digest})"
    return BreakerKey(sendable(name))


@lru_cache(4096)
def family(tenant: str, stage: Stage, name: str) -> BreakerKey:
    return BreakerKey(name, stage, tenant)


def parsed(text: str) -> BreakerKey:
    """The reverse of `BreakerKey.text`."""
    kind, _, rest = text.replace("%7C", "|").replace("%25", "%").partition(":")
    if kind == IMAGE:
        return BreakerKey(rest)
    stage, tenant, name = rest.split(":", 2)
    return BreakerKey(name, Stage(stage), tenant)


async def look_at(store: Store, keys: Sequence[BreakerKey]) -> dict[BreakerKey, Shared]:
    """Those of these that have failed lately."""
    names = [f"{key.text}{fact}" for key in keys for fact in FACTS]
    values = await store.read("HMGET", store.keys.breakers, *names)
    row = [
        part for name, value in zip(names, values, strict=True) if value is not None for part in (name.encode(), value)
    ]
    return read(row, await store.now_ms()) if row else {}


async def look(store: Store) -> dict[BreakerKey, Shared]:
    """All that have failed lately, open or not."""
    row = await store.read("HGETALL", store.keys.breakers)
    return read(row, await store.now_ms()) if row else {}


def read(row: list[bytes], now_ms: int) -> dict[BreakerKey, Shared]:
    """The hash, a field and its value in turn."""
    fields = {name.decode(): value.decode() for name, value in zip(row[::2], row[1::2], strict=True)}
    plain = [name for name in fields if not name.endswith(("|breaker", "|why", "|since"))]
    return {parsed(name): _shared(name, fields, now_ms) for name in plain}


async def failed(store: Store, key: BreakerKey, why: str, seen: Shared | None) -> Shared:
    """Counts a failure; the breaker as it is then. While Redis is full none is counted: the attempt ends by its own
    error, not by that.
    """
    now_ms = await store.now_ms()
    try:
        await store.write("HSET", store.keys.breakers, key.text, now_ms, repeat=Repeat.SAME)
    except OutOfMemoryError:
        return seen or Shared(key, rules.CLOSED, why[:WHY_CHARS], now_ms, now_ms)
    facts = {"why": why[:WHY_CHARS]}
    was = seen.breaker if seen else rules.CLOSED
    after = await pools.observe(store, None, key.text, was, _failed, facts)
    if int(await store.read("HLEN", store.keys.breakers)) > len(FACTS) * MOST:
        await _forget_oldest(store)
    return Shared(key, after, why[:WHY_CHARS], now_ms, now_ms)


async def succeeded(store: Store, key: BreakerKey) -> None:
    """Closes it: nothing is left of it."""
    await _remove(store, [key])


async def let_through(store: Store, seen: Shared) -> bool:
    """True if the caller's job may try: one in a back-off may, and another one if nothing comes of that."""
    allowed = False

    def transition(breaker: Breaker, now_ms: int) -> Breaker:
        nonlocal allowed
        after = rules.let_through(breaker, now_ms)
        allowed = after != breaker
        return after

    await pools.observe(store, None, seen.key.text, seen.breaker, transition)
    return allowed


async def put_back(store: Store, seen: Shared) -> None:
    """The caller's job, which was let through, has shown nothing."""
    await pools.observe(store, None, seen.key.text, seen.breaker, rules.put_back)


async def forget_old(store: Store) -> None:
    """Removes those that nothing has failed by for long: their jobs are gone, or their node is."""
    for key, seen in (await look(store)).items():
        if seen.now_ms - seen.last_ms > FORGET_MS:
            await succeeded(store, key)


async def _forget_oldest(store: Store) -> None:
    """A quarter of them, so that it is not done for each one that comes."""
    found = sorted((await look(store)).values(), key=lambda each: (each.open, each.key.kind == FAMILY, each.last_ms))
    surplus = len(found) - 3 * MOST // 4
    if surplus > 0:
        await _remove(store, [each.key for each in found[:surplus]])


async def _remove(store: Store, keys: Sequence[BreakerKey]) -> None:
    fields = [f"{key.text}{fact}" for key in keys for fact in (*FACTS, "|since")]
    await store.write("HDEL", store.keys.breakers, *fields, repeat=Repeat.SAME)


def _failed(breaker: Breaker, now_ms: int) -> Breaker:
    return rules.failed(breaker, now_ms, chance.fraction(), SHARED)


def _shared(name: str, fields: Mapping[str, str], now_ms: int) -> Shared:
    state = rules.parse(fields.get(f"{name}|breaker", ""))
    return Shared(parsed(name), state, fields.get(f"{name}|why", ""), int(fields[name]), now_ms)
