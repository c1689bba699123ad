"""Single faults, each with the one thing that must happen."""

import asyncio
import time

import pytest

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Outcome, Stage, Task, Verdict
from prorl_mq.service import cancel, inspect, submit
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.support.service import RUN, acknowledge_all, assert_nothing_left, gather, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]


def one_batch(name: str, groups: int, n: int, limits: Limits | None = None, **payload: object) -> BatchRequest:
    task = {"secret": "CANARY-1", **payload}
    return BatchRequest(
        run_id="chaos",
        batch_id=name,
        groups=[
            GroupRequest(task=Task(task_id=f"t{i}", data_source="chaos", payload=task), n=n) for i in range(groups)
        ],
        limits=limits or Limits(backoff_ms=50),
    )


async def state_of(store: Store, job: str) -> tuple[str, str | None]:
    status = await inspect.job_status(store, JobRef(f"default:{job}"))
    return status.state, status.stage


async def until_running(store: Store, jobs: int) -> None:
    """So many jobs are leased by workers of RUN: on its queue, or leased in INIT, they would not be stopped there."""

    async def seen() -> bool:
        refs = [JobRef(ref.decode()) for ref in await store.read("ZRANGE", store.keys.leases, 0, -1)]
        leased = [await inspect.job_status(store, ref) for ref in refs]
        return sum((each.state, each.stage) == ("leased", Stage.RUN) for each in leased) >= jobs

    await until(seen)


async def until_alive(world: World, store: Store, name: str) -> None:
    """A worker obeys signals from the moment that it announces itself."""

    async def seen() -> bool:
        return world.workers[name].pid in {worker.pid for worker in await living(store)}

    await until(seen)


async def test_a_worker_that_slept_past_its_lease_cannot_commit(world: World) -> None:
    """Stopped in RUN until its lease is over, then woken: the job has gone on elsewhere, once."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("b", 1, 1, run_ms=300))

        async def running() -> bool:
            return await state_of(store, "chaos:b-0:0") == ("leased", "run")

        await until(running)
        world.freeze("run-0")
        world.start_worker(Stage.RUN, 1)
        [record] = await gather(store, None, 1, within_s=30)
        world.thaw("run-0")
        events = [event.event for event in await inspect.job_events(store, JobRef("default:chaos:b-0:0"))]
        assert events.count("reap") == 1
        assert record.samples[0].outcome is Outcome.COMPLETED
        await until(lambda: _logged(world, "run-0", ("lease lost", "commit refused")))
        assert await gather(store, None, 2, within_s=0.5) == [record]
        assert await acknowledge_all(store) == 1
        await assert_nothing_left(store)


async def _logged(world: World, name: str, texts: tuple[str, ...]) -> bool:
    return any(text in world.log(name) for text in texts)


async def test_sigterm_drains_a_worker_and_loses_nothing(world: World) -> None:
    """What has started within the grace time finishes; the rest is given back and no attempt is counted."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("b", 4, 4, run_ms=1500))

        await until_running(store, 4)
        world.workers["run-0"].terminate()
        world.start_worker(Stage.RUN, 1, "--grace-ms", "200")
        await asyncio.to_thread(world.workers["run-0"].wait, 20)
        await until_alive(world, store, "run-1")
        world.workers["run-1"].terminate()
        await asyncio.to_thread(world.workers["run-1"].wait, 20)
        world.start_worker(Stage.RUN, 2)
        records = await gather(store, None, 4, within_s=40)
        assert [record.verdict for record in records] == [Verdict.ACCEPTED] * 4
        assert all(sample.attempt == 0 for record in records for sample in record.samples)
        assert world.workers["run-0"].returncode == world.workers["run-1"].returncode == 0
        assert await acknowledge_all(store) == 4
        await assert_nothing_left(store)


async def test_sigterm_ends_a_worker_whose_handler_ignores_its_cancel(world: World) -> None:
    """Within the grace time and 20 seconds; it says so, and its lease ends the job."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        world.start_worker(Stage.RUN, 1, "--grace-ms", "100")
        world.workers["run-0"].terminate()
        await asyncio.to_thread(world.workers["run-0"].wait, 20)
        await submit.accept(store, "default", one_batch("b", 1, 1, stubborn=True))
        await until_running(store, 1)
        began = time.monotonic()
        world.workers["run-1"].terminate()
        assert await asyncio.to_thread(world.workers["run-1"].wait, 30) == 1
        assert time.monotonic() - began < 25
        assert "has not stopped" in world.log("run-1")

        async def taken_back() -> bool:
            events = await inspect.job_events(store, JobRef("default:chaos:b-0:0"))
            return [event.event for event in events].count("reap") == 1

        await until(taken_back)


async def test_a_cancel_stops_queued_and_running_work(world: World) -> None:
    """The record comes once, nothing runs on, and each stop says how long it took."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("b", 8, 4, run_ms=60_000))

        await until_running(store, 8)
        started = time.monotonic()
        answer = await cancel.cancel(store, "run", RUN)
        assert answer.state == "cancelling"
        records = await gather(store, None, 8, within_s=50)
        assert [record.verdict for record in records] == [Verdict.CANCELLED] * 8
        stopped = [s.stopped_ms for record in records for s in record.samples if s.stopped_ms is not None]
        assert len(stopped) >= 8
        assert time.monotonic() - started < 55  # not the minute that each job takes
        assert (await cancel.cancel(store, "run", RUN)).state == "cancelled"
        assert await acknowledge_all(store) == 8
        await assert_nothing_left(store)


async def test_groups_close_though_init_fails_half_the_time(world: World) -> None:
    """Attempts are counted apart from deaths, and a group that cannot be refilled ends as failed, not as reward 0."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("some", 8, 4, Limits(backoff_ms=20), fail_init=True))
        hopeless = Limits(backoff_ms=20, max_attempts=1)
        await submit.accept(store, "default", one_batch("none", 2, 4, hopeless, fail_init=True))
        records = {record.group_id: record for record in await gather(store, None, 10, within_s=40)}
        assert all(records[f"some-{i}"].verdict is Verdict.ACCEPTED for i in range(8))
        for i in range(2):
            record = records[f"none-{i}"]
            lost = [sample for sample in record.samples if sample.outcome is Outcome.INFRA_ERROR]
            assert lost
            assert all(sample.reward is None and sample.error is not None for sample in lost)
            assert record.refills > 0
        assert await acknowledge_all(store) == 10
        await assert_nothing_left(store)


async def test_expired_jobs_end_and_say_so(world: World) -> None:
    """A total deadline holds in RUN as on a queue, and no worker outlives it."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        limits = Limits(total_ms=1500, run_ms=60_000)
        await submit.accept(store, "default", one_batch("b", 6, 4, limits, run_ms=50_000))
        records = await gather(store, None, 6, within_s=50)
        assert [record.verdict for record in records] == [Verdict.EXPIRED] * 6
        assert all(s.outcome is Outcome.EXPIRED and s.reward is None for r in records for s in r.samples)
        assert await acknowledge_all(store) == 6
        await assert_nothing_left(store)


async def test_run_out_of_time_is_truncated_and_init_is_a_stage_timeout(world: World) -> None:
    """A policy that is slow is data; a sandbox that is slow is not."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("run", 1, 2, Limits(run_ms=100), run_ms=20_000))
        slow = Limits(init_ms=100, backoff_ms=20)
        await submit.accept(store, "default", one_batch("init", 1, 2, slow, init_ms=20_000))
        records = {record.batch_id: record for record in await gather(store, None, 2, within_s=30)}
        assert {sample.outcome for sample in records["init"].samples} == {Outcome.STAGE_TIMEOUT}
        assert records["init"].verdict is Verdict.FAILED
        assert records["init"].refills == 2
        cut = records["run"].samples
        assert all(sample.truncated_by == "time" for sample in cut if sample.outcome is Outcome.TRUNCATED)
        assert await acknowledge_all(store) == 2
        await assert_nothing_left(store)


async def test_a_slow_eval_does_not_slow_run(world: World) -> None:
    """With EVAL ten times slower than RUN, everything has left RUN while most of it still waits for EVAL."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("b", 20, 8, run_ms=20, eval_ms=200))

        async def all_ran() -> bool:
            queued = int(await store.read("XLEN", store.keys.stage(Stage.EVAL)))
            before = int(await store.read("XLEN", store.keys.stage(Stage.RUN)))
            init = int(await store.read("XLEN", store.keys.stage(Stage.INIT)))
            left = int(await store.read("ZCARD", store.keys.backlog(RUN)))
            return before == init == left == 0 and queued > 80

        await until(all_ran)
        assert len(await gather(store, None, 20, within_s=40)) == 20
        assert await acknowledge_all(store) == 20
        await assert_nothing_left(store)


async def test_redis_may_be_away_for_seconds(world: World) -> None:
    """Workers and API wait for it, nobody exits, and work that ran meanwhile commits."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("b", 4, 4, run_ms=700))

        await until_running(store, 4)
        world.kill_redis()
        await asyncio.sleep(2.5 * world.lease_ms / 1000)
        world.start_redis()
        records = await gather(store, None, 4, within_s=40)
        assert [record.verdict for record in records] == [Verdict.ACCEPTED] * 4
        assert all(process.poll() is None for process in [*world.workers.values(), *world.apis.values()])
        assert await acknowledge_all(store) == 4
        await assert_nothing_left(store)


async def test_a_job_that_kills_its_workers_ends(world: World) -> None:
    """A poison job is given up after its limit of deaths, with the count in its record."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        request = one_batch("b", 1, 1, Limits(max_deaths=2, run_ms=60_000), run_ms=60_000)
        group = request.groups[0]
        await submit.accept(
            store, "default", BatchRequest(
                run_id="chaos", batch_id="b", limits=request.limits,
                groups=[GroupRequest(task=group.task, n=1, max_refills=0)],
            ),
        )  # fmt: skip
        for deaths in range(2):

            async def running(deaths: int = deaths) -> bool:
                status = await inspect.job_status(store, JobRef("default:chaos:b-0:0"))
                return (status.state, status.stage, status.attempt) == ("leased", "run", deaths)

            await until(running)
            world.kill("run-0")
            world.restart("run-0")
        [record] = await gather(store, None, 1, within_s=30)
        assert record.verdict is Verdict.FAILED
        assert record.samples[0].error is not None
        assert "2 workers died" in record.samples[0].error.message
        assert await acknowledge_all(store) == 1
        await assert_nothing_left(store)


async def test_a_group_id_may_come_again_with_another_task(world: World) -> None:
    """Once acknowledged, an id is free: no worker remembers the task that had it before."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        for batch, run_ms in (("first", 0), ("second", 400)):
            task = Task(task_id=batch, data_source="chaos", payload={"run_ms": run_ms, "secret": f"CANARY-{batch}"})
            groups = [GroupRequest(task=task, n=2, group_id="same")]
            await submit.accept(store, "default", BatchRequest(run_id="chaos", batch_id=batch, groups=groups))
            [record] = await gather(store, None, 1, within_s=30)
            assert (record.task_id, record.verdict) == (batch, Verdict.ACCEPTED)
            # A loop's timer may be a millisecond early; how long the first one takes is the machine's affair.
            assert all(sample.seconds["run"] >= 0.9 * run_ms / 1000 for sample in record.samples)
            assert await acknowledge_all(store) == 1
        await assert_nothing_left(store)
