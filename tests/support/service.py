"""What the chaos tests share: a running service, its results, and what may be left when it is done."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from prorl_mq.cli.local.fsck import lines
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import RunRef, run_ref
from prorl_mq.schema.messages import GroupRecord, Stage
from prorl_mq.service.fsck.look import Report, look
from prorl_mq.store import pools, results, streams
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import connect, patiently
from prorl_mq.store.store import Store
from tests.support.world import Killer, World

RUN = run_ref("default", "chaos")


@asynccontextmanager
async def store_of(world: World, name: str = "trainer") -> AsyncIterator[Store]:
    """A store of the test's own, closed at the end."""
    redis, waiting = connect(world.settings), connect(world.settings)
    try:
        yield Store(redis, Keys(world.namespace), name=name, outage_ms=30_000, waiting=waiting)
    finally:
        await redis.aclose()
        await waiting.aclose()


async def start_all(world: World, store: Store, *, workers: int = 2, apis: int = 2, within_s: float = 40.0) -> None:
    """Redis, APIs, workers and a backend; returns when workers have announced themselves."""
    world.start_redis()
    await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
    await patiently(lambda: streams.ensure(store.redis, streams.shared(store.keys)), outage_ms=20_000)
    await pools.add(store, "default:policy", world.start_backend())
    for number in range(apis):
        world.start_api(number)
    for stage in Stage:
        for number in range(workers):
            world.start_worker(stage, number)

    async def known() -> bool:
        alive = await store.read("ZCARD", store.keys.workers)
        return bool(await store.read("HLEN", store.keys.schemas)) and int(alive) >= 3 * workers

    await until(known, within_s=within_s)


async def until(true: Callable[[], Awaitable[bool]], *, within_s: float = 40.0) -> None:
    """Waits for something that another process brings about."""
    async with asyncio.timeout(within_s):
        while not await true():
            await asyncio.sleep(0.03)


async def gather(
    store: Store, killer: Killer | None, groups: int, *, within_s: float, run: RunRef = RUN
) -> list[GroupRecord]:
    """Every closed group, while the killer works; a cursor never shows one twice."""
    found: list[GroupRecord] = []
    after, give_up = "0", time.monotonic() + within_s
    while len(found) < groups and time.monotonic() < give_up:
        if killer is not None:
            killer.step()
        for result in await results.collect(store, run, after=after, wait_ms=50):
            after = result.cursor
            found.append(decode(result.record, GroupRecord))
    return found


async def acknowledge_all(store: Store, run: RunRef = RUN) -> int:
    cursors = [result.cursor for result in await results.collect(store, run, limit=10_000)]
    return await results.acknowledge(store, run, cursors)


async def assert_nothing_left(store: Store) -> None:
    """Every group is acknowledged, and nothing stands for work that is over."""
    last = Report(violations=[], keys=0, groups=0, jobs=0, due=0, results=0)

    async def clean() -> bool:
        nonlocal last
        last = await look(store)
        return last.idle and not last.violations

    try:
        await until(clean, within_s=20)
    except TimeoutError:
        raise AssertionError("\n".join(lines(last))) from None
