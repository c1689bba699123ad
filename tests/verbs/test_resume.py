"""resume: a parked job stands on a stream again, with the time that it had."""

import pytest

from prorl_mq.schema.items import Advance, Resume, Stop
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Stage
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.lost import Act, case
from tests.verbs.places import JOB, J
from tests.verbs.test_pause import over, pause

pytestmark = pytest.mark.anyio


async def resume(queue: Queue, stage: Stage = Stage.INIT) -> str:
    [answer] = await queue.store.resume([Resume(JOB, (await queue.snapshot(JOB)).token, stage)])
    return answer


async def test_the_job_is_queued_and_its_deadline_has_moved_by_its_pause(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await pause(queue)
    before = await queue.snapshot(JOB)
    await queue.command("HINCRBY", queue.keys.job(JOB), "parked", -60_000)  # it was parked a minute ago
    await watch.look()
    assert await resume(queue) == "resumed"
    assert await watch.changes() == {
        f"+ deadlines {JOB}": "<ms>",
        "+ stage:init#1": f"j={JOB}",
        f"- paused {JOB}": "<ms>",
        f"- {J} ends": "resume",
        f"- {J} pause": "<ms>",
        f"- {J} parked": "<ms>",
        f"{J} entry": " → stage:init#1",
        f"{J} line": "… resume init w1;",
        f"{J} state": "paused → queued",
        f"{J} token": "T1 → T2",
    }
    after = await queue.snapshot(JOB)
    assert 60_000 <= after.deadline_ms - before.deadline_ms < 90_000
    assert int(await queue.command("ZSCORE", queue.keys.deadlines, JOB)) == after.deadline_ms
    [held] = await queue.take(Stage.INIT)
    assert held.ref == JOB


async def test_a_rollout_that_had_a_sandbox_continues_with_init(queue: Queue) -> None:
    await queue.admitted()
    [held] = await queue.take(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    await pause(queue)
    assert await resume(queue, Stage.INIT) == "resumed"
    job = await queue.snapshot(JOB)
    assert (job.stage, job.stream) == (Stage.INIT, queue.keys.stage(Stage.INIT))
    [again] = await queue.take(Stage.INIT)
    assert (await queue.store.advance([Advance(again, "n1", b"c")])) == ["advanced"]


async def test_a_worker_that_has_not_given_it_back_keeps_it(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    await watch.look()
    assert await resume(queue) == "resumed"
    assert await watch.changes() == {
        f"- {J} ends": "resume",
        f"- {J} pause": "<ms>",
        f"{J} line": "… resume run w1;",
    }
    assert await queue.store.release([held]) == ["released"]
    assert (await queue.snapshot(JOB)).state == State.QUEUED


async def test_a_worker_that_was_stopped_meanwhile_commits_nothing(queue: Queue, watch: Watch) -> None:
    """It slept through the end of its lease, the pause and the resumption."""
    held = await queue.hold(Stage.RUN)
    await pause(queue)
    await queue.store.release([held])
    await resume(queue)
    [again] = await queue.worker("w2").take(Stage.INIT)
    await watch.look()
    assert await queue.finish(held) in {"already", "stale"}
    await watch.nothing_changed()
    assert await queue.worker("w2").finish(again) == "finished"


async def test_one_that_was_paused_again_meanwhile_is_looked_at_again(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await pause(queue)
    old = (await queue.snapshot(JOB)).token
    await resume(queue)
    await pause(queue)
    await watch.look()
    assert await queue.store.resume([Resume(JOB, old, Stage.INIT)]) == ["moved"]
    await watch.nothing_changed()


async def test_a_pause_that_was_prolonged_is_not_over(queue: Queue, watch: Watch) -> None:
    """Whoever resumes what is over has looked before that."""
    await queue.admitted()
    await pause(queue)
    seen = [Resume(JOB, (await queue.snapshot(JOB)).token, Stage.INIT)]
    await watch.look()
    assert await queue.store.resume(seen, over=True) == ["moved"]
    await watch.nothing_changed()
    await over(queue)
    assert await queue.store.resume(seen, over=True) == ["resumed"]


@pytest.mark.parametrize("there", [True, False])
async def test_what_is_not_paused_is_left_alone(queue: Queue, watch: Watch, *, there: bool) -> None:
    if there:
        await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.store.resume([Resume(JOB, "", Stage.INIT)]) == ["already" if there else "gone"]
    await watch.nothing_changed()


async def test_what_is_to_end_is_not_resumed(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await pause(queue)
    await queue.store.stop(Verb.CANCEL, [Stop(JOB, b"", queue.keys.stage(Stage.RUN))])
    await watch.look()
    assert await resume(queue) == "already"
    await watch.nothing_changed()


@case("resume", ["already"])
async def _(queue: Queue) -> Act:
    await queue.admitted()
    await pause(queue)
    jobs = [Resume(JOB, (await queue.snapshot(JOB)).token, Stage.INIT)]
    return lambda q: q.store.resume(jobs)
