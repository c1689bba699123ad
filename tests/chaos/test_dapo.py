"""DAPO batches while workers, APIs and Redis are killed: full batches, and every prompt accounted for once."""

import asyncio
import os
from collections import Counter

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.ids import batch_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Task
from prorl_mq.schema.status import BatchReport
from prorl_mq.service import cancel, inspect, submit
from prorl_mq.store import results
from prorl_mq.store.store import Store
from tests.support.service import RUN, acknowledge_all, assert_nothing_left, start_all, store_of
from tests.support.world import Killer, World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]

SEEDS = [int(seed) for seed in os.environ.get("PRORL_CHAOS_SEEDS", "1").split(",")]
PROMPTS = int(os.environ.get("PRORL_CHAOS_JOBS", "2000")) // 50
KILLS = 8  # in each batch at most
LIMITS = Limits(max_deaths=100, max_attempts=100, backoff_ms=50, run_ms=20_000, init_ms=20_000, eval_ms=20_000)


def request(name: str, surplus: Surplus) -> BatchRequest:
    """Every other prompt has one sample, which no filter keeps; the others have rewards 0 and 1."""
    groups = [
        GroupRequest(
            task=Task(task_id=f"t{place}", data_source="chaos", payload={"run_ms": 400, "secret": "CANARY"}),
            n=1 + place % 2,
        )
        for place in range(PROMPTS)
    ]
    dapo = Dapo(target_groups=PROMPTS // 4, surplus=surplus)
    return BatchRequest(run_id="chaos", batch_id=name, groups=groups, limits=LIMITS, dapo=dapo)


async def report_of(store: Store, name: str, killer: Killer) -> BatchReport:
    """Its end may need the reaper, which rests for a lease after each death of Redis: so the killing stops in time."""
    enough = len(killer.done) + KILLS
    async with asyncio.timeout(120):
        while True:
            if len(killer.done) < enough:
                killer.step()
            else:
                killer.calm()
            status = (await inspect.batch_status(store, batch_ref(RUN, name))).dapo
            if status is not None and status.report is not None:
                return status.report
            await results.collect(store, RUN, after=f"{1 << 49}-0", wait_ms=50)


@pytest.mark.parametrize("seed", SEEDS)
async def test_batches_reach_their_target_whatever_is_killed(world: World, seed: int) -> None:
    async with store_of(world) as store:
        await start_all(world, store)
        killer = Killer(world, seed)
        reports = {}
        for surplus in Surplus:
            await submit.accept(store, "default", request(surplus, surplus))
            reports[str(surplus)] = await report_of(store, surplus, killer)
        killer.calm()
        assert killer.done, "nothing was killed: this shows nothing"
        await cancel.cancel(store, "run", RUN)
        records = await every_record(store)
        check(records, reports)
        assert await acknowledge_all(store) == 3 * PROMPTS + 3, "something was published twice"
        await assert_nothing_left(store)


async def every_record(store: Store) -> list[GroupRecord]:
    async with asyncio.timeout(60):
        while True:
            found = await results.collect(store, RUN, limit=10_000, wait_ms=50)
            if len(found) >= 3 * PROMPTS + 3:
                return [decode(each.record, GroupRecord) for each in found if not each.of_batch]


def check(records: list[GroupRecord], reports: dict[str, BatchReport]) -> None:
    names = [f"{surplus}-{place}" for surplus in Surplus for place in range(PROMPTS)]
    assert Counter(record.group_id for record in records) == Counter(names)
    for name, report in reports.items():
        mine = Counter(str(record.verdict) for record in records if record.batch_id == name)
        assert (report.reason, report.accepted.count) == ("target", PROMPTS // 4)
        assert (mine["accepted"], mine["filtered"]) == (report.accepted.count, report.filtered_wrong.count)
    for record in records:
        if record.verdict == "accepted":
            assert {each.reward for each in record.samples if not each.replaced} == {0.0, 1.0}
        assert "CANARY" not in str(record)
    ordered = [record for record in records if record.batch_id == "ordered" and record.submitted_in is None]
    accepted = sorted(int(r.group_id.rpartition("-")[2]) for r in ordered if r.verdict == "accepted")
    assert accepted == list(range(1, 2 * len(accepted), 2)), "not the first ones in the order of their draw"
