"""A batch is kept for as long as a group of it is open or its report is to come, and goes by its TTL afterwards."""

from collections.abc import Sequence

import pytest

from prorl_mq.schema.ids import BatchRef, batch_ref
from prorl_mq.schema.messages import Stage
from prorl_mq.store.results import acknowledge
from tests.support.queue import LINGER_MS, RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP
from tests.verbs.reserved import BATCH, NEXT, accept, drawn, due, finished, reserved, submit

pytestmark = pytest.mark.anyio


async def mortal(queue: Queue, *batches: BatchRef) -> Sequence[bool]:
    """Which of the batches have a TTL. All of them are there."""
    found = [await queue.command("PTTL", queue.keys.batch(batch)) for batch in batches or [BATCH]]
    assert -2 not in found
    return [ttl_ms > 0 for ttl_ms in found]


async def test_a_batch_waits_for_its_last_record(queue: Queue) -> None:
    batch, first = queue.new("g")
    _, last = queue.new("h")
    await queue.store.submit(batch, [first, last])
    assert await mortal(queue) == [False]
    for group in (first, last):
        await queue.store.admit(RUN, [await queue.wanted(group.ref)])
    [held, other] = await queue.take(Stage.INIT)
    await queue.finish(held)
    await queue.settle()
    assert await mortal(queue) == [False]
    await queue.finish(other)
    await queue.settle()
    assert await mortal(queue) == [True]


async def test_the_second_part_of_a_batch_keeps_it_though_the_first_is_done(queue: Queue) -> None:
    batch, first = queue.new("g")
    await finished_plain(queue)
    assert await mortal(queue) == [True]
    assert await queue.store.submit(batch, [first, queue.new("h")[1]]) == ["already", "stored"]
    assert await mortal(queue) == [False]


async def finished_plain(queue: Queue) -> None:
    await queue.admitted("g")
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    await queue.settle()


@pytest.mark.parametrize("act", ["asked again", "acknowledged"])
async def test_a_batch_that_is_used_again_starts_its_time_again(queue: Queue, act: str) -> None:
    await finished_plain(queue)
    await queue.command("PEXPIRE", queue.keys.batch(BATCH), 60_000)
    if act == "asked again":
        batch, group = queue.new("g")
        await queue.store.submit(batch, [group])
    else:
        await queue.ack_all()
    assert await queue.command("PTTL", queue.keys.batch(BATCH)) > 60_000


async def test_a_group_that_is_acknowledged_before_the_others_have_ended_starts_no_time(queue: Queue) -> None:
    batch, first = queue.new("g")
    await queue.store.submit(batch, [first, queue.new("h")[1]])
    await queue.store.admit(RUN, [await queue.wanted(first.ref)])
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    await queue.settle()
    [result] = await queue.results()
    assert await acknowledge(queue.store, RUN, [result.cursor]) == 1
    assert await mortal(queue) == [False]


async def test_a_repeat_of_a_forgotten_batch_whose_record_is_left_brings_nothing_back(
    queue: Queue, watch: Watch
) -> None:
    await finished_plain(queue)
    await queue.command("UNLINK", queue.keys.batch(BATCH))
    batch, group = queue.new("g")
    await watch.look()
    assert await queue.store.submit(batch, [group]) == ["already"]
    await watch.nothing_changed()


async def test_a_dapo_batch_waits_for_its_report(queue: Queue) -> None:
    await submit(queue, batch=NEXT)  # for prompts of others
    await finished(queue, *await drawn(queue, "g"))
    await accept(queue, GROUP)
    await queue.store.halt(BATCH, "target")
    assert await mortal(queue, BATCH, NEXT) == [False, False]
    await queue.store.close(BATCH, b"the report", groups=1)
    assert await mortal(queue, BATCH, NEXT) == [True, False]


@pytest.mark.parametrize("end", ["taken over", "settled"])
async def test_a_batch_with_a_report_waits_for_what_it_has_left_to_its_run(queue: Queue, end: str) -> None:
    refs = await drawn(queue, "g", "h")
    await finished(queue, *refs)
    await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000)
    await queue.store.close(BATCH, b"the report", groups=2)
    assert await mortal(queue) == [False]
    await submit(queue, batch=NEXT)
    for ref, expected in zip(refs, (False, True), strict=True):
        if end == "taken over":
            assert await queue.store.adopt(NEXT, {ref: BATCH}) == 0
        else:
            verdict = await due(queue, ref, phase="closed", carried=True)
            await queue.store.settle(verdict._replace(verdict="cancelled", record=b"record"), linger_ms=LINGER_MS)
        assert await mortal(queue) == [expected]


async def test_a_batch_of_prompts_goes_after_its_last_one_is_drawn(queue: Queue) -> None:
    ahead = batch_ref(RUN, "ahead")
    prompts, groups = reserved(queue, "p", "q", batch=ahead)
    await queue.store.submit(prompts._replace(plan=b"", target=0, waits_in=RUN), groups)
    await submit(queue)
    for drew, (group, expected) in enumerate(zip(groups, (False, True), strict=True)):
        assert await queue.store.draw(BATCH, RUN, {group.ref: ahead}, drawn=drew) == 1
        assert await mortal(queue, ahead, BATCH) == [expected, False]
