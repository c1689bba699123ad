"""A worker that waits for more streams than it has free places asks for nothing meanwhile, and takes what fits."""

import asyncio

import pytest
from msgspec.structs import replace

from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import Acting, finish, options, until, working
from tests.worker.test_front import waiting
from workers.process import read
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio
LONG_MS = 30_000
LOOKS = 6 * read.LATE_S


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Waits of workers, which last so long that nothing ends one but a call."""
    waits: list[list[str]] = []
    news = work.Reader.news

    async def counted(reader: work.Reader, names: list[str], *, block_ms: int) -> bool:
        waits.append(names)
        return await news(reader, names, block_ms=block_ms)

    monkeypatch.setattr(work.Reader, "news", counted)
    monkeypatch.setattr(read, "BLOCK_MS", LONG_MS)
    return waits


async def reads(queue: Queue) -> int:
    stats = (await queue.command("INFO", "commandstats")).decode().splitlines()
    found = [line for line in stats if line.startswith("cmdstat_xreadgroup:")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in found)


async def test_it_reads_nothing_until_it_is_called(
    queue: Queue, settings: RedisSettings, calls: list[list[str]]
) -> None:
    acting = Acting(finish)
    async with working(replace(options(settings, slots=1), stage=Stage.RUN), acting):
        await until(lambda: len(calls) > 1)
        await asyncio.sleep(LOOKS)
        before = await reads(queue)
        await asyncio.sleep(LOOKS)
        assert await reads(queue) == before
        fresh, begun = await waiting(queue, Stage.RUN)
        await until(lambda: len(acting.begun) == len(fresh) + len(begun))


@pytest.mark.parametrize("called", [True, False])
async def test_what_comes_calls_it(
    queue: Queue, settings: RedisSettings, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, *, called: bool
) -> None:
    """The control hears of nothing."""
    if not called:

        async def deaf(_reader: work.Reader, names: list[str], *, block_ms: int) -> bool:
            calls.append(names)
            await asyncio.sleep(block_ms / 1000)
            return False

        monkeypatch.setattr(work.Reader, "news", deaf)
    acting = Acting(finish)
    async with working(replace(options(settings, slots=1), stage=Stage.INIT), acting):
        await until(lambda: len(calls) > called)
        [ref] = await queue.admitted(group="late", batch="late")
        if called:
            await until(lambda: acting.begun == [ref])
        else:
            await asyncio.sleep(LOOKS)
            assert acting.begun == []


async def test_it_takes_no_more_than_it_has_places_for(
    queue: Queue, settings: RedisSettings, calls: list[list[str]]
) -> None:
    """What it read beyond them would wait for its lease, or for its death, while others are idle."""
    over = asyncio.Event()

    async def act(job: Work) -> Move:
        await over.wait()
        return await finish(job)

    acting = Acting(act)
    async with working(replace(options(settings, slots=1), stage=Stage.RUN), acting):
        await until(lambda: len(calls) > 1)
        fresh, begun = await waiting(queue, Stage.RUN)
        await until(lambda: len(acting.begun) == 1)
        await asyncio.sleep(LOOKS)
        assert await pending(queue) == 1
        over.set()
        await until(lambda: len(acting.begun) == len(fresh) + len(begun))


async def pending(queue: Queue) -> int:
    found = 0
    for stream in [key.decode() for key in await queue.command("KEYS", "*stage:*")]:
        found += int((await queue.command("XPENDING", stream, "workers"))[0])
    return found
