"""Random DAPO runs through a real queue accept what a plain model says, and account for every group."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.ids import JobRef, RunRef, job_parts
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.support.oracle import Oracle
from tests.support.queue import RUN
from tests.support.sampler import Sampler, prompts

SOAK = os.environ.get("PRORL_SOAK") == "1"
MOST = 10  # prompts of a batch


class Step(NamedTuple):
    """A batch to submit."""

    target: int
    surplus: Surplus
    oversample: Fraction
    max_groups: int | None
    good: list[bool]

    def dapo(self) -> Dapo:
        return Dapo(
            target_groups=self.target,
            surplus=self.surplus,
            oversample=float(self.oversample),
            max_groups=self.max_groups,
        )


steps = st.builds(
    Step,
    st.integers(1, 4),
    st.sampled_from(list(Surplus)),
    st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(2)]),
    st.one_of(st.none(), st.integers(1, MOST)),
    st.lists(st.booleans(), min_size=1, max_size=MOST),
)
runs = st.lists(steps, min_size=1, max_size=3)


class Died(BaseException):
    """The process is gone: nothing in it takes this for a fault of one run, which would be left out for seconds."""


class Mortal(Store):
    """Dies at its `life`th call, before the server has done its work or `after` it. 0: never dies."""

    life = 0
    after = False

    async def call(
        self, verb: str, keys: list[str], arguments: Any, *raw: bytes | int, of_run: RunRef | None = None
    ) -> Any:
        self.life -= 1
        if self.life == 0 and not self.after:
            raise Died
        answer = await super().call(verb, keys, arguments, *raw, of_run=of_run)
        if self.life == 0:
            raise Died
        return answer


@pytest.fixture(scope="module")
def run_server(redis_server: RedisSettings) -> Iterator[tuple["asyncio.Runner", Sampler]]:
    with asyncio.Runner() as runner:

        async def start() -> Sampler:
            client = connect(redis_server)
            keys = Keys(redis_server.namespace)
            return Sampler(client, keys, Mortal(client, keys, name="duty", outage_ms=5_000))

        sampler = runner.run(start())
        yield runner, sampler
        runner.run(sampler.queue.redis.aclose())


def reward(good: bool, index: int) -> float:
    return float(good and index % 2)


async def fresh(sampler: Sampler) -> None:
    await sampler.queue.command("FLUSHALL")
    sampler.held.clear()
    sampler.hire()
    await sampler.prepare()


def named(number: int, step: Step) -> dict[str, bool]:
    return {f"b{number}-{place}": good for place, good in enumerate(step.good)}


async def play(sampler: Sampler, plan: list[Step], choices: Iterator[int]) -> None:
    """Batches one after another; which job ends next is drawn, and the model is told of each group that has ended."""
    await fresh(sampler)
    oracle = Oracle({name: good for number, step in enumerate(plan) for name, good in named(number, step).items()})
    everything: list[str] = []
    for number, step in enumerate(plan):
        names = list(named(number, step))
        everything += names
        oracle.open(names, step.target, str(step.surplus), step.oversample, step.max_groups)
        await sampler.submit(f"b{number}", prompts(*names), step.dapo())
        await sampler.calm()
        while oracle.reason == "none":
            await same(sampler, oracle, number)
            ended = await one_ends(sampler, oracle.good, next(choices))
            await sampler.calm()
            if ended is not None:
                oracle.end(ended)
        await same(sampler, oracle, number)
        if next(choices) % 3 == 0 and (ended := await one_ends(sampler, oracle.good, next(choices))) is not None:
            await sampler.calm()
            oracle.ended.append(ended)  # in the carry-over, between two batches
        await check_report(sampler, f"b{number}", oracle)
    await everything_has_one_record(sampler, everything)


async def one_ends(sampler: Sampler, good: dict[str, bool], choice: int) -> str | None:
    """A running job finishes or, seldom, is lost; the group whose last sample it was."""
    running = await sampler.running()
    if not running:
        return None
    ref = running[choice % len(running)]
    name = job_parts(ref).group
    lost = choice % 11 == 0 and job_parts(ref).sample < 2
    await sampler.finish(ref, None if lost else await the_reward(sampler, ref, good[name]))
    left = await sampler.queue.command("HMGET", sampler.queue.keys.group(job_parts(ref).group_ref), "open", "counted")
    return name if left[0] == b"0" and await complete(sampler, ref) else None


async def the_reward(sampler: Sampler, ref: JobRef, good: bool) -> float:
    """Whether a refill or not, the samples of a good group get 0, 1, 0, ... in the order of their end."""
    found = await sampler.queue.group(job_parts(ref).group_ref)
    assert found is not None
    return reward(good, len(found.rewards))


async def complete(sampler: Sampler, ref: JobRef) -> bool:
    found = await sampler.queue.group(job_parts(ref).group_ref)
    return found is not None and len(found.rewards) == found.spec.n


async def same(sampler: Sampler, oracle: Oracle, number: int) -> None:
    records = [each for each in await sampler.records() if each.batch_id == f"b{number}"]
    by_verdict = {verdict: [each.group_id for each in records if each.verdict == verdict] for verdict in VERDICTS}
    assert by_verdict["accepted"] == oracle.accepted or (
        oracle.surplus == "ordered" and sorted(by_verdict["accepted"]) == sorted(oracle.accepted)
    )
    assert sorted(by_verdict["filtered"]) == sorted(oracle.filtered)
    assert sorted(by_verdict["cancelled"]) == sorted(oracle.unneeded)
    keys = sampler.queue.keys
    where = keys.drawn(f"{RUN}:b{number}") if oracle.reason == "none" else keys.carried(RUN)  # type: ignore[arg-type]
    assert await sampler.names(where) == oracle.playing


VERDICTS = ("accepted", "filtered", "cancelled", "failed", "expired")


async def check_report(sampler: Sampler, batch: str, oracle: Oracle) -> None:
    report = (await sampler.reports())[batch]
    filtered = report.filtered_right.count + report.filtered_wrong.count + report.filtered_mixed.count
    assert (report.reason, report.accepted.count, filtered) == (
        oracle.reason, len(oracle.accepted), len(oracle.filtered),
    )  # fmt: skip
    assert (report.drawn, report.cancelled.count) == (oracle.draws, len(oracle.unneeded))
    assert report.carried_out == len(oracle.playing)


async def everything_has_one_record(sampler: Sampler, names: list[str]) -> None:
    """After the run's end; and what was published and acknowledged leaves nothing."""
    await sampler.cancel("run", "r")
    await sampler.calm()
    published = Counter(each.group_id for each in await sampler.records())
    assert published == Counter(names)
    await sampler.queue.ack_all()
    keys, left = sampler.queue.keys, [key.decode() for key in await sampler.queue.command("KEYS", "*")]
    for kind in ("reservoir:", "drawn:", "carried:", "group:", "open:", "groups:", "backlog:"):
        assert not [key for key in left if key.startswith(keys.prefix + kind)], kind
    assert (
        await sampler.queue.command(
            "EXISTS", keys.dapo, keys.carrying, keys.deadlines, keys.leases, keys.unacked, keys.in_flight
        )
        == 0
    )


@settings(max_examples=3_000 if SOAK else 150)
@given(plan=runs, seed=st.integers(0, 1 << 32))
def test_the_accepted_groups_are_those_of_the_model(
    run_server: tuple["asyncio.Runner", Sampler], plan: list[Step], seed: int
) -> None:
    runner, sampler = run_server
    rng = random.Random(seed)
    runner.run(play(sampler, plan, iter(lambda: rng.randrange(1 << 20), None)))


async def survive(sampler: Sampler, plan: list[Step], rng: random.Random) -> list[GroupRecord]:
    """As above, but the duties die again and again between their calls, and nobody waits for calm."""
    await fresh(sampler)
    store = sampler.store
    assert isinstance(store, Mortal)
    good = {name: flag for number, step in enumerate(plan) for name, flag in named(number, step).items()}
    for number, step in enumerate(plan):
        await sampler.submit(f"b{number}", prompts(*named(number, step)), step.dapo())
        while f"b{number}" not in await sampler.reports():
            store.life, store.after = rng.choice([0, rng.randrange(1, 12)]), rng.random() < 0.5
            try:
                await sampler.calm()
            except Died:
                sampler.hire()
                continue
            await one_ends(sampler, good, rng.randrange(1 << 20))
    store.life = 0
    await sampler.calm()
    return await sampler.records()


@settings(max_examples=1_000 if SOAK else 120)
@given(plan=runs, seed=st.integers(0, 1 << 32))
def test_whoever_dies_between_two_calls_every_group_is_accounted_for_once(
    run_server: tuple["asyncio.Runner", Sampler], plan: list[Step], seed: int
) -> None:
    """Duties that die before a call, or after it was done and before they heard of it."""
    runner, sampler = run_server
    records = runner.run(survive(sampler, plan, random.Random(seed)))
    reports = runner.run(sampler.reports())
    everything = [name for number, step in enumerate(plan) for name in named(number, step)]
    for number, step in enumerate(plan):
        report, good = reports[f"b{number}"], named(number, step)
        mine = Counter(str(each.verdict) for each in records if each.batch_id == f"b{number}")
        filtered = report.filtered_right.count + report.filtered_wrong.count + report.filtered_mixed.count
        counted = (report.accepted.count, filtered, report.cancelled.count)
        assert counted == (mine["accepted"], mine["filtered"], mine["cancelled"])
        assert report.accepted.count <= step.target
        assert (report.accepted.count == step.target) == (report.reason == "target")
        if len(plan) == 1 and step.surplus is Surplus.ORDERED and step.max_groups is None:
            first = [name for name, flag in good.items() if flag][: step.target]
            assert sorted(each.group_id for each in records if each.verdict == "accepted") == sorted(first)
    runner.run(everything_has_one_record(sampler, everything))
