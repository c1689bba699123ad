"""The last second of a group: two samples finish, one is lost and refilled, and a cancel comes, all at one moment."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable

import pytest

from prorl_mq.duties.settle import Settling
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.ids import JobRef, job_parts
from prorl_mq.schema.messages import Outcome
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import LINGER_MS, RUN
from tests.support.sampler import Sampler, group, prompts

pytestmark = pytest.mark.anyio
SECONDS = 10_000 if os.environ.get("PRORL_SOAK") == "1" else 500
AT_ONCE = 10  # groups whose last second is the same


@pytest.fixture
async def sampler(settings: RedisSettings, keys: Keys) -> AsyncIterator[Sampler]:
    redis = connect(settings, connections=16)
    made = Sampler(redis, keys)
    await made.prepare()
    yield made
    await redis.aclose()


async def last_second(sampler: Sampler, name: str, jobs: list[JobRef], rng: random.Random) -> None:
    """Everybody at once, each on a connection of its own."""
    first, second, third = jobs
    at_once: list[Awaitable[object]] = [
        sampler.finish(first, 1.0),
        sampler.finish(second, 0.0),
        sampler.finish(third, rng.choice([None, 1.0])),
        _after(sampler, rng.randrange(60), sampler.cancel("group", f"r:{name}")),
        _after(sampler, rng.randrange(6), _settle(sampler)),
        _after(sampler, rng.randrange(6), _settle(sampler)),
        _after(sampler, rng.randrange(6), sampler.replenishing.look_around()),
        _after(sampler, rng.randrange(8), _admit(sampler, name)),
    ]
    rng.shuffle(at_once)
    await asyncio.gather(*at_once)


async def _after(sampler: Sampler, moments: int, act: Awaitable[object]) -> None:
    """A moment is a round trip."""
    for _ in range(moments):
        await sampler.queue.command("PING")
    await act


async def _settle(sampler: Sampler) -> None:
    """Two processes may both believe that they hold the duty. Nobody waits here."""
    if await sampler.queue.command("XLEN", sampler.queue.keys.due):
        await asyncio.wait_for(Settling(sampler.store, linger_ms=LINGER_MS).turn(), 60)


async def _admit(sampler: Sampler, name: str) -> None:
    """A refill, where there is one by now."""
    row = await sampler.queue.command("HMGET", sampler.queue.keys.group(group(name)), "next", "wanted", "total_ms")
    if row[1] is not None and int(row[1]):
        await sampler.queue.store.admit(RUN, [await sampler.queue.wanted(group(name))])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("surplus", list(Surplus))
async def test_each_group_gets_one_record_that_agrees_with_its_samples(sampler: Sampler, surplus: Surplus) -> None:
    rng = random.Random(f"{surplus}")
    rounds = SECONDS // len(Surplus) // AT_ONCE + 1
    ends: set[tuple[str, ...]] = set()
    for number in range(rounds):
        names = [f"g{number}-{place}" for place in range(AT_ONCE)]
        dapo = Dapo(target_groups=AT_ONCE, oversample=2.0, surplus=surplus)
        await sampler.submit(f"b{number}", prompts(*names, n=3), dapo)
        await sampler.calm()
        jobs = {name: [ref for ref in await sampler.running() if job_parts(ref).group == name] for name in names}
        await asyncio.gather(*(last_second(sampler, name, jobs[name], rng) for name in names))
        await sampler.calm()
        while running := await sampler.running():
            for ref in running:
                await sampler.finish(ref, 1.0)
            await sampler.calm()
        ends |= await check(sampler, names)
        report = (await sampler.reports())[f"b{number}"]
        assert report.accepted.count + report.cancelled.count == AT_ONCE
        await sampler.queue.ack_all()
        sampler.held.clear()
    keys = sampler.queue.keys
    assert {end[0] for end in ends} == {"accepted", "cancelled"}, "the moments were all the same: this shows nothing"
    assert len(ends) > 2, ends
    for timers in (keys.leases, keys.delayed, keys.deadlines, keys.backlog(RUN), keys.due, keys.dapo):
        assert await sampler.queue.command("EXISTS", timers) == 0 or await sampler.queue.command("TYPE", timers) == (
            b"stream"
        )
    assert await sampler.queue.command("XLEN", keys.due) == 0


async def check(sampler: Sampler, names: list[str]) -> set[tuple[str, ...]]:
    """How the groups ended, each with the outcomes of its samples."""
    verdicts = await sampler.verdicts()  # each once
    assert set(verdicts) == set(names)
    for published in await sampler.records():
        outcomes = [each.outcome for each in published.samples]
        if published.verdict == "accepted":
            assert outcomes.count(Outcome.COMPLETED) == 3
        else:
            assert published.verdict == "cancelled"
        assert [each.index for each in published.samples] == list(range(len(outcomes)))
        for sample in published.samples:
            assert (sample.reward is not None) == (sample.outcome is Outcome.COMPLETED)
    return {(str(each.verdict), *(str(one.outcome) for one in each.samples)) for each in await sampler.records()}
