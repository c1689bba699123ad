"""release: a job goes back to the stage it was claimed from, at once."""

import pytest

from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import Stage
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.fence import assert_fenced
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio


async def test_the_job_waits_again_and_its_reservation_is_given_back(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.store.release([held]) == ["released"]
    assert await watch.changes() == {
        f"+ {J} releases": "1",
        "+ stage:run#2": f"j={JOB}",
        f"- {J} backend": "http://b1",
        f"- leases {JOB}": "<ms>",
        "- pending stage:run#1": "w1",
        "- stage:run#1": f"j={JOB}",
        f"{J} commits": "… T2@w1",
        f"{J} entry": "stage:run#1 → stage:run#2",
        f"{J} line": "… release run T2 w1;",
        f"{J} owner": "emptied",
        f"{J} state": "leased → queued",
        f"{J} token": "T2 → T3",
        "pool:policy http://b1": "1 → 0",
    }


async def test_a_job_of_a_lane_stays_on_its_lane(queue: Queue) -> None:
    """Its sandbox lives on that node."""
    await queue.admitted()
    [held] = await queue.take(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    [held] = await queue.take(Stage.RUN, "n1")
    assert await queue.store.release([held]) == ["released"]
    assert (await queue.snapshot(JOB)).stream == queue.keys.stage(Stage.RUN, "n1")
    [again] = await queue.take(Stage.RUN, "n1")
    assert again.ref == JOB


@pytest.mark.parametrize("stage", list(Stage))
async def test_the_fence(queue: Queue, watch: Watch, stage: Stage) -> None:
    held = await queue.hold(stage)
    await assert_fenced(queue, watch, held, lambda store, each: store.release([each]), done="released")


async def test_releases_are_counted_apart_from_attempts(queue: Queue) -> None:
    await queue.hold(Stage.INIT)
    for _ in range(3):
        await queue.store.release([await queue.held_now(JOB)])
        await queue.take(Stage.INIT)
    job = await queue.snapshot(JOB)
    assert (job.attempts, job.deaths, job.releases) == (0, 0, 3)
