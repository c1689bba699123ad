"""promote: a delayed job whose back-off is over stands on the stream it continues on."""

import pytest

from prorl_mq.schema.messages import Stage
from tests.support.queue import Queue, count_of
from tests.support.watch import Watch
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio


async def promote(queue: Queue, stage: Stage = Stage.INIT) -> str:
    [answer] = await queue.store.promote([(JOB, queue.keys.stage(stage))])
    return answer


async def test_the_job_is_queued_again(queue: Queue, watch: Watch) -> None:
    await queue.fail(await queue.hold(Stage.RUN))
    await queue.backed_off(JOB)
    await watch.look()
    assert await promote(queue) == "promoted"
    assert await watch.changes() == {
        "+ stage:init#1": f"j={JOB}",
        f"- delayed {JOB}": "1",
        f"{J} entry": " → stage:init#1",
        f"{J} line": "… promote init w1;",
        f"{J} state": "delayed → queued",
        f"{J} token": "T2 → T3",
    }


async def test_not_before_its_time(queue: Queue, watch: Watch) -> None:
    await queue.fail(await queue.hold(Stage.RUN))
    await watch.look()
    assert await promote(queue) == "early"
    await watch.nothing_changed()


async def test_not_onto_another_stream(queue: Queue, watch: Watch) -> None:
    await queue.fail(await queue.hold(Stage.RUN))
    await queue.backed_off(JOB)
    await watch.look()
    assert await promote(queue, Stage.EVAL) == "stale"
    await watch.nothing_changed()


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.fail(await queue.hold(Stage.RUN))
    await queue.backed_off(JOB)
    await promote(queue)
    await watch.look()
    assert await promote(queue) == "stale"
    await watch.nothing_changed()


async def test_a_timer_without_a_job_is_removed(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.command("ZADD", queue.keys.delayed, 1, JOB)
    assert await promote(queue) == "gone"
    await watch.nothing_changed()


async def test_the_old_token_is_worth_nothing_after_the_back_off(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.fail(held)
    await queue.backed_off(JOB)
    await promote(queue)
    [again] = await queue.take(Stage.INIT)
    assert count_of(again.token) > count_of(held.token)
    assert await queue.finish(held._replace(entry=again.entry)) == "already"
    assert await queue.finish(again) == "finished"
