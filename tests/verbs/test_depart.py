"""depart: a run of which nothing is in flight ends in its cell, and nothing is written to it there any more."""

import pytest

from prorl_mq.errors import RunMoved
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.schema.messages import Stage
from prorl_mq.store.moves import moving
from prorl_mq.store.verbs.moves import DepartedRun
from tests.support.queue import RUN, Queue
from tests.verbs.lost import Act, case
from tests.verbs.moved import departed, published
from tests.verbs.places import GROUP

pytestmark = pytest.mark.anyio


@case("depart", "b")
async def _(queue: Queue) -> Act:
    await queue.submit()

    async def act(q: Queue) -> str:
        left = await q.store.depart(RUN, "b", due_after="0-0")
        assert isinstance(left, DepartedRun)
        return left.cell

    return act


async def test_a_run_with_anything_in_flight_stays(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    assert await moving.depart(queue.store, RUN, "b") == {"jobs": 1}
    await queue.command("XADD", queue.keys.intake(RUN), "*", "m", "message")
    await queue.command("SADD", queue.keys.to_cancel("acme"), f"{RUN}:b", "acme:other:b")
    assert await moving.depart(queue.store, RUN, "b") == {"jobs": 1, "messages on its intake": 1, "cancels": 1}
    assert await queue.command("EXISTS", queue.keys.away(RUN)) == 0


async def test_a_verdict_that_is_due_is_waited_for_whenever_it_came(queue: Queue) -> None:
    await queue.submit()
    await queue.command("XADD", queue.keys.due, "*", "g", GROUP)
    assert await moving.depart(queue.store, RUN, "b") == {"verdicts": 1}
    assert await queue.store.depart(RUN, "b", due_after="0-0") == {"verdicts": 1}


async def test_what_comes_after_it_is_refused_and_names_the_cell(queue: Queue) -> None:
    await published(queue)
    await departed(queue)
    waits = await queue.wanted(GROUP.__class__(f"{RUN}:waits"))
    batch, group = queue.new("late", batch="late")
    for late in (
        queue.store.submit(batch, [group]),
        queue.store.admit(RUN, [waits]),
        queue.store.configure(RUN, b"{}"),
        queue.store.withdraw(RUN, {waits.ref: batch.ref}, Withdrawal.CANCEL),
        queue.store.halt(batch.ref, "cancelled"),
        queue.store.ack(RUN, []),
        queue.store.hold_run(RUN, 1 << 50),
        queue.store.retire_run(RUN, idle_ms=0),
    ):
        with pytest.raises(RunMoved, match="is in cell b") as refused:
            await late
        assert refused.value.cell == "b"
    assert await queue.command("ZCARD", queue.keys.paused_runs) == 0
    for key in (queue.keys.results(RUN), queue.keys.cancellable(RUN)):
        assert await queue.command("EXISTS", key) == 0, "its trainer could still write to it"


async def test_a_repeat_is_the_same_departure_and_a_run_that_is_not_here_cannot_leave(queue: Queue) -> None:
    assert await queue.store.depart(RUN, "b", due_after="0-0") is None
    await queue.submit()
    first = await queue.store.depart(RUN, "b", due_after="0-0")
    assert await queue.store.depart(RUN, "c", due_after="0-0") == first


async def test_a_run_that_is_arriving_cannot_leave(queue: Queue) -> None:
    await queue.store.arrive(RUN, "begin", mover="m", cell="a")
    await queue.command("HSET", queue.keys.run(RUN), "seen", 1)
    assert await queue.store.depart(RUN, "b", due_after="0-0") is None
