"""fail: a failed attempt is put aside until its back-off is over."""

import pytest

from prorl_mq.schema.items import Fail
from prorl_mq.schema.messages import Stage
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.fence import assert_fenced
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio


async def test_the_job_is_delayed_and_its_reservation_is_given_back(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.store.fail([Fail(held, Stage.INIT, 60_000, "it\tbroke\n twice")]) == ["delayed"]
    assert await watch.changes() == {
        f"+ {J} attempts": "1",
        f"+ delayed {JOB}": "<ms>",
        f"- {J} backend": "http://b1",
        f"- leases {JOB}": "<ms>",
        "- pending stage:run#1": "w1",
        "- stage:run#1": f"j={JOB}",
        f"{J} commits": "… T2@w1",
        f"{J} entry": "emptied",
        f"{J} line": "… fail init T2 w1 it broke twice;",
        f"{J} owner": "emptied",
        f"{J} stage": "run → init",
        f"{J} state": "leased → delayed",
        f"{J} stream": "stage:run → stage:init",
        "pool:policy http://b1": "1 → 0",
    }


async def test_the_back_off_is_counted_from_now(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    earliest = await queue.store.now_ms()
    await queue.fail(held, delay_ms=5_000)
    due = int(await queue.command("ZSCORE", queue.keys.delayed, JOB))
    assert earliest + 5_000 <= due <= await queue.store.now_ms() + 5_000


async def test_a_drained_workers_hand_back_does_not_count_as_an_attempt(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    assert await queue.store.fail([Fail(held, Stage.INIT, 0, "drained", counts=False)]) == ["delayed"]
    job = await queue.snapshot(JOB)
    assert (job.attempts, job.releases) == (0, 1)


async def test_a_failed_scoring_keeps_its_trajectory_and_its_bytes(queue: Queue) -> None:
    held = await queue.hold(Stage.EVAL)
    assert await queue.fail(held, Stage.EVAL) == "delayed"
    await queue.backed_off(JOB)
    await queue.store.promote([(JOB, queue.keys.stage(Stage.EVAL))])
    [claim] = await queue.claim(Stage.EVAL, await queue.read(Stage.EVAL))
    assert (claim.attempts, claim.carry) == (1, b"from run")
    assert await queue.command("GET", claim.trajectory) == b"tokens"
    assert await queue.command("GET", queue.keys.eval_bytes) == b"100"


async def test_what_is_put_aside_no_longer_counts_as_waiting_for_eval(queue: Queue) -> None:
    held = await queue.hold(Stage.EVAL)
    for _ in range(2):  # its reply may be lost
        await queue.store.fail([Fail(held, Stage.EVAL, 0, "", counts=False, aside=True)])
    assert await queue.command("GET", queue.keys.eval_bytes) == b"0"
    await queue.store.promote([(JOB, queue.keys.stage(Stage.EVAL))])
    [again] = await queue.take(Stage.EVAL)
    await queue.store.fail([Fail(again, Stage.EVAL, 0, "", counts=False, carry=b"more", aside=True)])
    await queue.store.promote([(JOB, queue.keys.stage(Stage.EVAL))])
    [claim] = await queue.claim(Stage.EVAL, await queue.read(Stage.EVAL))
    assert (claim.carry, await queue.command("GET", claim.trajectory)) == (b"more", b"tokens")
    assert await queue.command("GET", queue.keys.eval_bytes) == b"0"


@pytest.mark.parametrize("stage", list(Stage))
async def test_the_fence(queue: Queue, watch: Watch, stage: Stage) -> None:
    held = await queue.hold(stage)
    await assert_fenced(
        queue, watch, held, lambda store, each: store.fail([Fail(each, Stage.INIT, 1, "it broke")]), done="delayed"
    )
