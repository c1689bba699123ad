"""depart: a run of which nothing is in flight ends in its cell, and nothing is written to it there any more."""

from contextlib import suppress

import pytest
from redis.exceptions import OutOfMemoryError

from prorl_mq.duties.intake import Intake
from prorl_mq.errors import NotFound, RunMoved
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.intake import Acknowledge, Cancel, ResumeMessage
from prorl_mq.schema.messages import Stage
from prorl_mq.store import results, runs
from prorl_mq.store.direct import consumers
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


@pytest.mark.parametrize("fenced", [True, False])
async def test_what_comes_after_it_is_refused_and_names_the_cell(queue: Queue, *, fenced: bool) -> None:
    """The control: without the note that fences the run, nothing is refused with its cell."""
    await published(queue)
    await departed(queue)
    if not fenced:
        await queue.command("DEL", queue.keys.away(RUN))
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
        queue.store.let_run(RUN),
        runs.expect(queue.store, RUN),
        results.acknowledge(queue.store, RUN, ["1-1"]),
        consumers.acknowledge(queue.store, RUN, ["1-1"]),
        queue.store.retire_run(RUN, idle_ms=0),
    ):
        if not fenced:
            with suppress(NotFound):
                await late
            continue
        with pytest.raises(RunMoved, match="is in cell b") as refused:
            await late
        assert refused.value.cell == "b"
    if not fenced:
        return
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


@pytest.mark.parametrize("gone", [False, True])
async def test_no_message_of_its_intake_is_carried_out_where_it_was(queue: Queue, *, gone: bool) -> None:
    """Not even one that would find nothing to do: what it means lies in the other cell."""
    await published(queue)
    [result] = await queue.results()
    await queue.withdraw(GroupRef(f"{RUN}:waits"))
    await queue.settle()
    departure = await departed(queue)
    if gone:
        await moving.clear(queue.store, RUN, departure)
    for message in (
        Acknowledge(reply="m", cursors=[result.cursor]),
        ResumeMessage(reply="m", kind="run", id="r"),
        Cancel(reply="m", kind="run", id="r"),
    ):
        answer = await Intake(queue.store).answer(RUN, "1-1", encode(message))
        assert (answer.ok, answer.status) == (False, 421), message
        assert "is in cell b" in (answer.error or "")


async def test_a_run_leaves_a_redis_that_is_full(queue: Queue) -> None:
    await published(queue)
    await queue.command("CONFIG", "SET", "maxmemory", 1, "maxmemory-policy", "noeviction")
    try:
        with pytest.raises(OutOfMemoryError):
            await queue.command("ZADD", queue.keys.leaving, 1, RUN)
        departure = await departed(queue)
        assert await moving.clear(queue.store, RUN, departure) == "vacated"
    finally:
        await queue.command("CONFIG", "SET", "maxmemory", 0)
