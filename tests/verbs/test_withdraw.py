"""withdraw: groups leave their run's backlog for good."""

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.messages import GroupRecord, Outcome, Stage, Verdict
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, G

pytestmark = pytest.mark.anyio


async def test_a_group_that_had_no_job_yet_closes(queue: Queue, watch: Watch) -> None:
    await queue.submit(n=2)
    await watch.look()
    assert await queue.withdraw(GROUP) == [0]
    assert await watch.changes() == {
        f"+ {G} withdrawn": "cancel",
        "+ due#1": f"g={GROUP}",
        f"- backlog:acme:r {GROUP}": "<ms>",
        f"{G} wanted": "2 → 0",
    }
    await queue.settle()
    [result] = await queue.results()
    published = decode(result.record, GroupRecord)
    assert (published.verdict, list(published.samples)) == (Verdict.CANCELLED, [])


async def test_a_group_with_running_jobs_closes_after_them(queue: Queue, watch: Watch) -> None:
    await queue.admitted(n=2)
    await watch.look()
    assert await queue.withdraw(GROUP) == [2]
    assert await watch.changes() == {f"+ {G} withdrawn": "cancel"}


async def test_a_group_that_waits_for_its_refill_closes(queue: Queue) -> None:
    await queue.admitted(max_refills=1)
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held, Outcome.INFRA_ERROR)
    assert await queue.settle() == ["refilled"]
    assert await queue.withdraw(GROUP) == [1]
    await queue.settle()
    [result] = await queue.results()
    assert decode(result.record, GroupRecord).verdict is Verdict.CANCELLED


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.submit()
    await queue.withdraw(GROUP)
    await watch.look()
    assert await queue.withdraw(GROUP) == [0]
    await watch.nothing_changed()


async def test_a_group_that_is_closed_or_gone_is_left_alone(queue: Queue, watch: Watch) -> None:
    await queue.finish(await queue.hold(Stage.INIT))
    await queue.settle()
    await watch.look()
    missing = await queue.withdraw(GROUP, GroupRef("acme:r:missing"))
    assert missing == [-1, -1]
    await watch.nothing_changed()
