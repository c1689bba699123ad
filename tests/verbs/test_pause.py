"""pause: a job that nobody has is parked; of any other it is remembered, and it is parked when it is given back."""

import pytest

from prorl_mq.schema.items import Advance, Entry, Fail, Held, Pause, Reap, Stop
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.status import PauseEnd
from prorl_mq.store.store import renewal
from tests.support.queue import POOL, RUN, Queue, lease_of, record
from tests.support.watch import Watch
from tests.verbs.lost import Act, case
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000


async def pause(queue: Queue, *, for_ms: int = HOUR_MS, ends: PauseEnd = PauseEnd.RESUME) -> str:
    job = await queue.snapshot(JOB)
    [answer] = await queue.store.pause([Pause(JOB, job.stream)], for_ms=for_ms, ends=ends)
    return answer


async def over(queue: Queue) -> None:
    """The time of the pause has passed."""
    await queue.command("HSET", queue.keys.job(JOB), "pause", 1)
    await queue.command("ZADD", queue.keys.paused, "XX", 1, JOB)


async def state(queue: Queue) -> str:
    return (await queue.snapshot(JOB)).state


async def test_a_waiting_job_is_parked_and_its_deadline_stands_still(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await watch.look()
    assert await pause(queue) == "parked"
    assert await watch.changes() == {
        f"+ paused {JOB}": "<ms>",
        f"+ {J} ends": "resume",
        f"+ {J} pause": "<ms>",
        f"+ {J} parked": "<ms>",
        f"+ {J} owner": "",
        f"- deadlines {JOB}": "<ms>",
        "- stage:init#1": f"j={JOB}",
        f"{J} entry": "emptied",
        f"{J} line": "… park init T2 w1 until_ms=;",
        f"{J} state": "queued → paused",
        f"{J} token": "T1 → T2",
    }


@pytest.mark.parametrize("stage", list(Stage))
async def test_the_worker_of_a_running_job_is_told_by_its_heartbeat(queue: Queue, watch: Watch, stage: Stage) -> None:
    held = await queue.hold(stage)
    await watch.look()
    assert await pause(queue, ends=PauseEnd.EXPIRE) == "pausing"
    assert await watch.changes() == {
        f"+ {J} ends": "expire",
        f"+ {J} pause": "<ms>",
        f"{J} line": f"… pause {stage} w1;",
    }
    made = renewal(queue.keys, "w1", {"stage": stage}, [lease_of(held)], lease_ms=90_000)
    assert await queue.store.call("renew", made.keys, made.arguments) == [b"pause"]


async def test_a_worker_of_an_earlier_release_hears_nothing_new(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    made = renewal(queue.keys, "w1", {"stage": "run"}, [lease_of(held)], lease_ms=90_000)
    del made.arguments["pauses"]
    assert await queue.store.call("renew", made.keys, made.arguments) == [b"held"]


async def test_a_pause_that_is_over_is_not_told(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    await over(queue)
    made = renewal(queue.keys, "w1", {"stage": "run"}, [lease_of(held)], lease_ms=90_000)
    assert await queue.store.call("renew", made.keys, made.arguments) == [b"held"]


async def test_an_entry_that_was_read_is_its_readers(queue: Queue) -> None:
    """It may be at work on it: the entry stays, and the job is parked when it comes back."""
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    assert await pause(queue) == "pausing"
    assert await queue.store.release([held]) == ["released"]
    assert await state(queue) == State.PAUSED


async def test_a_job_in_its_back_off_is_parked(queue: Queue, watch: Watch) -> None:
    await queue.fail(await queue.hold(Stage.RUN))
    await watch.look()
    assert await pause(queue) == "parked"
    changed = await watch.changes()
    assert (changed[f"{J} state"], changed[f"- delayed {JOB}"]) == ("delayed → paused", "<ms>")


async def give_back(queue: Queue, how: str, held: Held) -> list[str]:
    store, stream = queue.store, queue.keys.stage(*held.lane)
    match how:
        case "advance":
            return await store.advance([Advance(held, "n1", b"more", "", 100)])
        case "release":
            return await store.release([held])
        case "fail":
            return await store.fail([Fail(held, Stage.INIT, 60_000, "paused", counts=False)])
        case _:
            await queue.overdue(JOB)
            return await store.reap(
                Verb.REAP, State.QUEUED, [Reap(JOB, held.token, held.entry, stream, Stage.INIT, POOL)]
            )


WAYS = ("advance", "release", "fail", "reap")


@pytest.mark.parametrize("how", WAYS)
async def test_whatever_would_put_it_on_a_stream_parks_it(queue: Queue, watch: Watch, how: str) -> None:
    """Nothing of it stays where somebody could take it: no entry, no lease, no backend, no timer, no bytes for EVAL."""
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    assert (await give_back(queue, how, held))[0] not in {"stale", "already"}
    job, flat = await queue.snapshot(JOB), (await watch.now()).flat
    assert (job.state, job.entry, job.owner) == (State.PAUSED, "", "")
    assert job.token != held.token
    assert f"paused {JOB}" in flat
    assert not {f"{timers} {JOB}" for timers in ("leases", "delayed", "deadlines")} & set(flat)
    assert not [place for place, value in flat.items() if place.startswith("stage:") and value.startswith(f"j={JOB}")]
    assert (await queue.load(), int(await queue.command("GET", queue.keys.eval_bytes) or 0)) == (0, 0)
    assert await queue.finish(held) in {"stale", "already"}


@pytest.mark.parametrize("how", WAYS)
async def test_a_pause_that_is_over_parks_nothing(queue: Queue, how: str) -> None:
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    await over(queue)
    await give_back(queue, how, held)
    assert await state(queue) == (State.DELAYED if how == "fail" else State.QUEUED)


async def test_a_job_for_a_lane_is_parked_in_front_of_it(queue: Queue) -> None:
    await queue.admitted()
    [entry] = await queue.read(Stage.INIT)
    await pause(queue)
    held = await queue.held_now(JOB)
    assert await queue.store.divert(held.lane, [Entry(JOB, entry.entry)], ["sums"]) == ["diverted"]
    assert await state(queue) == State.PAUSED
    assert await queue.store.divert(held.lane, [Entry(JOB, entry.entry)], ["sums"]) == ["already"]


async def test_what_ends_before_it_is_paused_has_ended(queue: Queue) -> None:
    held = await queue.hold(Stage.EVAL)
    await pause(queue)
    assert await queue.finish(held) == "finished"
    assert await pause(queue) == State.DONE
    assert await queue.command("ZCARD", queue.keys.paused) == 0


async def test_a_job_that_waits_for_eval_no_longer_holds_run_up(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    await queue.store.advance([Advance(held, None, b"more", "", 100)])
    assert int(await queue.command("GET", queue.keys.eval_bytes)) == 100
    assert await pause(queue) == "parked"
    assert int(await queue.command("GET", queue.keys.eval_bytes)) == 0


async def test_a_job_that_has_moved_is_looked_at_again(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await watch.look()
    stale = [Pause(JOB, queue.keys.stage(Stage.INIT))]
    assert await queue.store.pause(stale, for_ms=HOUR_MS, ends=PauseEnd.RESUME) == ["moved"]
    await watch.nothing_changed()


async def test_a_repeat_gives_the_pause_another_end(queue: Queue) -> None:
    await queue.admitted()
    assert await pause(queue, for_ms=HOUR_MS) == "parked"
    first = float(await queue.command("ZSCORE", queue.keys.paused, JOB))
    assert await pause(queue, for_ms=2 * HOUR_MS, ends=PauseEnd.EXPIRE) == "parked"
    job = await queue.snapshot(JOB)
    assert float(await queue.command("ZSCORE", queue.keys.paused, JOB)) == job.pause_ms >= first + HOUR_MS
    assert job.ends == PauseEnd.EXPIRE


async def test_a_mark_is_set_once_and_its_end_anew(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    assert await pause(queue, for_ms=HOUR_MS) == "pausing"
    await watch.look()
    assert await pause(queue, for_ms=2 * HOUR_MS) == "pausing"
    assert await watch.changes() == {}  # times have no names
    assert (await queue.snapshot(JOB)).pause_ms > await queue.store.now_ms() + HOUR_MS + HOUR_MS // 2


async def test_a_parked_job_is_cancelled_at_once(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await queue.store.release([await queue.held_now(JOB)])
    await pause(queue)
    await watch.look()
    stop = Stop(JOB, record(JOB, Outcome.CANCELLED), queue.keys.stage(Stage.RUN))
    assert await queue.store.stop(Verb.CANCEL, [stop]) == ["ended"]
    changed = await watch.changes()
    assert (changed[f"{J} state"], changed[f"- paused {JOB}"]) == ("paused → done", "<ms>")


async def test_a_job_that_is_told_to_stop_is_not_parked(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    stream = queue.keys.stage(Stage.RUN)
    assert await queue.store.stop(Verb.CANCEL, [Stop(JOB, b"", stream)]) == ["stopping"]
    assert await pause(queue) == State.STOPPING
    assert await queue.store.release([held]) == ["stopping"]
    await queue.overdue(JOB)
    reap = Reap(JOB, held.token, held.entry, stream, Stage.RUN, POOL, Outcome.CANCELLED, record(JOB))
    assert await queue.store.reap(Verb.REAP, State.DONE, [reap]) == ["ended"]


async def test_no_deadline_ends_a_parked_job_but_the_end_of_its_pause_may(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await pause(queue, ends=PauseEnd.EXPIRE)
    await queue.command("HSET", queue.keys.job(JOB), "deadline", 1)
    stop = Stop(JOB, record(JOB, Outcome.EXPIRED), queue.keys.stage(Stage.INIT), deadline=True)
    await watch.look()
    assert await queue.store.stop(Verb.EXPIRE, [stop]) == ["moved"]
    await watch.nothing_changed()
    await over(queue)
    assert await queue.store.stop(Verb.EXPIRE, [stop]) == ["ended"]
    assert (await queue.snapshot(JOB)).outcome == Outcome.EXPIRED


async def test_a_run_that_is_held_admits_nothing(queue: Queue, watch: Watch) -> None:
    wanted = await queue.wanted(await queue.submit())
    await queue.store.hold_run(RUN, await queue.store.now_ms() + HOUR_MS)
    await watch.look()
    assert await queue.store.admit(RUN, [wanted]) == [-1]
    await watch.nothing_changed()
    await queue.store.hold_run(RUN, 1)
    assert await queue.store.admit(RUN, [wanted]) == [1]


async def test_an_unknown_job_is_gone(queue: Queue, watch: Watch) -> None:
    await watch.look()
    jobs = [Pause(JOB, queue.keys.stage(Stage.INIT))]
    assert await queue.store.pause(jobs, for_ms=HOUR_MS, ends=PauseEnd.RESUME) == ["gone"]
    await watch.nothing_changed()


@case("pause", ["parked"])
async def _(queue: Queue) -> Act:
    await queue.admitted()
    jobs = [Pause(JOB, queue.keys.stage(Stage.INIT))]
    return lambda q: q.store.pause(jobs, for_ms=HOUR_MS, ends=PauseEnd.RESUME)
