"""finish: a job ends, its record goes to its group, and the group's last job makes a verdict due."""

import pytest

from prorl_mq.schema.items import Finish
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.service.cancel import cancel
from tests.support.queue import Queue, record
from tests.support.watch import Watch
from tests.verbs.fence import assert_fenced, assert_refused_while_stopping
from tests.verbs.places import GROUP, JOB, G, J

pytestmark = pytest.mark.anyio

LINE = (
    "admit init submitted_ms=; claim init T1 w1; advance run T1 w1; claim run T2 w1; assign run T2 w1 http://b1; "
    "advance eval T2 w1; claim eval T3 w1; "
)


async def test_the_record_and_the_time_line_go_to_the_group_and_its_verdict_is_due(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.EVAL)
    await watch.look()
    assert await queue.finish(held) == "finished"
    assert await watch.changes() == {
        f"+ {G} s:0": "<packed>",
        f"+ {G} t:0": LINE + "finish eval T3 w1 completed; ",
        f"+ {J} outcome": "completed",
        "+ due#1": f"g={GROUP}",
        f"- deadlines {JOB}": "<ms>",
        "+ counters": "hash",
        "+ counters jobs:completed": "1",
        "- in_flight": "hash",
        "- in_flight acme:r": "1",
        f"- leases {JOB}": "<ms>",
        "- pending stage:eval#1": "w1",
        "- stage:eval#1": f"j={JOB}",
        f"{G} open": "1 → 0",
        f"{J} carry": "emptied",
        f"{J} commits": "… T3@w1",
        f"{J} entry": "emptied",
        f"{J} line": "emptied",
        f"{J} owner": "emptied",
        f"{J} state": "leased → done",
        "bytes:eval value": "100 → 0",
    }
    assert await queue.command("HGET", queue.keys.group(GROUP), "s:0") == record(JOB)


async def test_a_job_that_ends_in_run_gives_its_reservation_back(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    assert await queue.load() == 1
    assert await queue.finish(held, Outcome.INFRA_ERROR) == "finished"
    assert await queue.load() == 0


async def test_only_the_last_job_of_a_group_makes_its_verdict_due(queue: Queue) -> None:
    await queue.admitted(n=3)
    held = await queue.take(Stage.INIT)
    for left, each in zip((2, 1, 0), held, strict=True):
        assert await queue.finish(each) == "finished"
        assert await queue.command("HGET", queue.keys.group(GROUP), "open") == b"%d" % left
        assert await queue.command("XLEN", queue.keys.due) == (left == 0)


@pytest.mark.parametrize("stage", list(Stage))
async def test_the_fence(queue: Queue, watch: Watch, stage: Stage) -> None:
    held = await queue.hold(stage)
    finish = Finish(held, Outcome.COMPLETED, record(JOB))
    await assert_fenced(
        queue, watch, held, lambda store, each: store.finish([finish._replace(held=each)]), done="finished"
    )


async def test_a_job_that_must_stop_is_not_finished_with_a_reward(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.EVAL)
    await cancel(queue.store, "job", JOB)
    finish = Finish(held, Outcome.COMPLETED, record(JOB))
    await assert_refused_while_stopping(queue, watch, held, lambda store, _: store.finish([finish]))
