"""settle: a group's verdict is applied once, as refills or as a published record."""

import pytest
from redis.exceptions import ResponseError

from prorl_mq.duties.settle import settlement
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.items import Settlement
from prorl_mq.schema.messages import GroupRecord, Outcome, Purpose, Stage, Verdict
from tests.support.queue import LINGER_MS, RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB, G, J
from tests.verbs.reserved import BATCH, B, accept, drawn, finished, park
from tests.verbs.reserved import due as reserved_due

pytestmark = pytest.mark.anyio


async def due(queue: Queue) -> Settlement:
    """The verdict on the first group that is due, not yet applied."""
    [(entry, fields), *_] = await queue.command("XRANGE", queue.keys.due, "-", "+")
    ref = GroupRef(fields[1].decode())
    return settlement(entry.decode(), ref, await queue.group(ref))


async def settle(queue: Queue, verdict: Settlement) -> str:
    return await queue.store.settle(verdict, linger_ms=LINGER_MS)


async def test_a_closed_group_is_published_and_leaves_only_what_answers_questions(queue: Queue, watch: Watch) -> None:
    await queue.finish(await queue.hold(Stage.EVAL))
    await watch.look()
    verdict = await due(queue)
    cursor = await settle(queue, verdict)
    changed = await watch.changes()
    assert {place.removeprefix(f"- {G} ") for place in changed if place.startswith(f"- {G} ")} == {
        "at", "batch", "family", "n", "next", "open", "refills", "s:0", "t:0", "total_ms", "wanted", "warm",
    }  # fmt: skip
    assert {place: value for place, value in changed.items() if not place.startswith(f"- {G} ")} == {
        "+ batch:acme:r:b ttl": "yes",
        "+ batch:acme:r:b v:accepted": "1",
        "+ counters groups:accepted": "1",
        f"+ {G} bytes": str(verdict.bytes),
        f"+ {G} cursor": "<cursor>",
        f"+ {G} verdict": "accepted",
        f"+ {J} ttl": "yes",
        "+ results:acme:r#1": "<packed>",
        "+ run:acme:r bytes": str(verdict.bytes),
        "+ run:acme:r size": str(verdict.bytes),
        "- due#1": f"g={GROUP}",
        f"- groups:acme:r {GROUP}": "member",
        f"- groups:acme:r:b {GROUP}": "member",
        f"- open:{GROUP}": "string",
        f"- open:{GROUP} value": "<packed>",
        f"- sealed:{GROUP}": "string",
        f"- sealed:{GROUP} value": "<packed>",
        "batch:acme:r:b closed": "0 → 1",
    }
    [result] = await queue.results()
    assert result.cursor == cursor
    published = decode(result.record, GroupRecord)
    assert (published.verdict, published.group_id, published.n) == (Verdict.ACCEPTED, "g", 1)
    assert [sample.job_id for sample in published.samples] == list(published.timelines) == ["r:g:0"]


async def test_a_repeat_is_answered_already_and_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.finish(await queue.hold(Stage.INIT))
    verdict = await due(queue)
    await settle(queue, verdict)
    await watch.look()
    assert await settle(queue, verdict) == "already"
    await watch.nothing_changed()


async def test_two_settlers_publish_a_group_once(queue: Queue) -> None:
    """Two processes may both believe that they hold the duty."""
    await queue.finish(await queue.hold(Stage.INIT))
    again = await queue.command("XADD", queue.keys.due, "*", "g", GROUP)
    first = await due(queue)
    second = first._replace(entry=again.decode())
    assert (await settle(queue, first)).partition("-")[0].isdigit()
    assert await settle(queue, second) == "already"
    assert len(await queue.results()) == 1
    assert await queue.command("XLEN", queue.keys.due) == 0


async def test_lost_samples_are_wanted_again(queue: Queue, watch: Watch) -> None:
    await queue.admitted(n=2, max_refills=2)
    for held, outcome in zip(await queue.take(Stage.INIT), (Outcome.COMPLETED, Outcome.INFRA_ERROR), strict=True):
        await queue.finish(held, outcome)
    await queue.command("DEL", queue.keys.admit_bell)
    await watch.look()
    verdict = await due(queue)
    assert await settle(queue, verdict) == "refilled"
    assert await watch.changes() == {
        f"+ backlog:acme:r {GROUP}": "0",
        "+ changed:admit acme:r": "0",
        "+ counters refilled": "1",
        "- due#1": f"g={GROUP}",
        f"{G} refills": "0 → 1",
        f"{G} wanted": "0 → 1",
    }
    assert await settle(queue, verdict) == "already"
    await watch.nothing_changed()


@pytest.mark.parametrize("purpose", list(Purpose))
async def test_a_refill_stands_before_all_that_are_new_of_its_purpose(queue: Queue, purpose: Purpose) -> None:
    await queue.admitted("again", batch="b1", max_refills=1, purpose=purpose)
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held, Outcome.INFRA_ERROR)
    for number, each in enumerate([purpose, Purpose.TRAIN, Purpose.EVAL]):
        await queue.submit(f"new-{number}", batch=f"b-{number}", purpose=each, priority=9)
    assert await queue.settle() == ["refilled"]
    order = await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1)
    names = [ref.decode().rpartition(":")[2] for ref in order]
    assert names == (
        ["again", "new-0", "new-2", "new-1"] if purpose is Purpose.EVAL else ["new-2", "again", "new-0", "new-1"]
    )


async def test_a_group_that_was_withdrawn_after_its_verdict_was_made_gets_no_refills(queue: Queue) -> None:
    """The cancel was answered `cancelled`: nothing of the group may run afterwards."""
    await queue.admitted(max_refills=1)
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held, Outcome.INFRA_ERROR)
    verdict = await due(queue)
    assert verdict.wanted == 1
    await queue.withdraw(GROUP)
    await settle(queue, verdict)
    await queue.settle()
    [result] = await queue.results()
    assert decode(result.record, GroupRecord).verdict is Verdict.CANCELLED
    assert await queue.command("EXISTS", queue.keys.backlog(RUN)) == 0


async def test_a_verdict_that_did_not_see_every_sample_is_made_again(queue: Queue, watch: Watch) -> None:
    """A worker of 0.1.0 made the group due after two samples; the other two end before its verdict is applied."""
    await queue.admitted(n=4)
    first, second, third, fourth = await queue.take(Stage.INIT)
    await queue.finish(first)
    await queue.finish(second)
    await queue.command("XADD", queue.keys.due, "*", "g", GROUP)
    stale = (await due(queue))._replace(verdict="accepted", record=b"two of four", bytes=11)
    await queue.finish(third)
    await queue.finish(fourth)
    await watch.look()
    assert await settle(queue, stale) == "moved"
    await watch.nothing_changed()
    await queue.settle()
    [result] = await queue.results()
    assert [sample.index for sample in decode(result.record, GroupRecord).samples] == [0, 1, 2, 3]


async def test_a_verdict_of_a_group_that_is_gone_only_leaves_the_queue(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.command("XADD", queue.keys.due, "*", "g", "acme:r:missing")
    assert await settle(queue, await due(queue)) == "already"
    assert await watch.changes() == {}


async def test_an_open_group_is_not_published(queue: Queue, watch: Watch) -> None:
    await queue.admitted(n=2)
    await queue.finish((await queue.take(Stage.INIT))[0])
    await queue.command("XADD", queue.keys.due, "*", "g", GROUP)
    assert await settle(queue, await due(queue)) == "already"
    assert await queue.results() == []
    assert await queue.command("HGET", queue.keys.group(GROUP), "open") == b"1"


async def test_every_sample_is_published_the_replaced_ones_too(queue: Queue) -> None:
    await queue.admitted(n=1, max_refills=2)
    for outcome in (Outcome.INFRA_ERROR, Outcome.STAGE_TIMEOUT, Outcome.COMPLETED):
        [held] = await queue.take(Stage.INIT)
        await queue.finish(held, outcome)
        if await queue.settle() == ["refilled"]:
            await queue.store.admit(RUN, [await queue.wanted(GROUP)])
    [result] = await queue.results()
    published = decode(result.record, GroupRecord)
    assert [(sample.index, sample.replaced) for sample in published.samples] == [(0, True), (1, True), (2, False)]
    assert (published.verdict, published.refills) == (Verdict.ACCEPTED, 2)


async def test_an_ended_job_still_answers_a_late_commit(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.finish(held)
    await queue.settle()
    assert 0 < await queue.command("PTTL", queue.keys.job(JOB)) <= LINGER_MS
    assert await queue.finish(held) == "already"


async def test_a_drawn_group_counts_towards_its_batchs_target(queue: Queue, watch: Watch) -> None:
    [ref, _] = await drawn(queue, "g", "h")
    await finished(queue, ref)
    await watch.look()
    await accept(queue, ref)
    changed = await watch.changes()
    assert changed[f"+ {B} n:accepted"] == "1"
    assert changed[f"- drawn:{BATCH} {ref}"] == "1"


async def test_a_batch_never_accepts_more_than_its_target(queue: Queue, watch: Watch) -> None:
    """Two groups end at once: the second verdict is made again."""
    first, second = await drawn(queue, "g", "h", target=1)
    await finished(queue, first, second)
    assert (await accept(queue, first)).partition("-")[0].isdigit()
    await watch.look()
    assert await accept(queue, second) == "moved"
    await watch.nothing_changed()


@pytest.mark.parametrize("saw", [{"phase": "ending"}, {"carried": True}])
async def test_a_verdict_on_what_is_not_so_any_more_changes_nothing(
    queue: Queue, watch: Watch, saw: dict[str, object]
) -> None:
    await finished(queue, *await drawn(queue, "g"))
    await watch.look()
    assert await park(queue, GROUP, **saw) == "moved"
    await watch.nothing_changed()


async def test_a_parked_group_leaves_the_queue_and_keeps_everything_else(queue: Queue, watch: Watch) -> None:
    await finished(queue, *await drawn(queue, "g"))
    await queue.command("DEL", queue.keys.draw_bell)
    await watch.look()
    verdict = (await reserved_due(queue, GROUP))._replace(park=True)
    assert await settle(queue, verdict) == "parked"
    assert await watch.changes() == {
        f"+ changed:draw {BATCH}": "0",
        f"+ parked:{BATCH} {GROUP}": "1",
        f"+ {G} parked": "1",
        "- due#1": f"g={GROUP}",
    }
    assert await settle(queue, verdict) == "already"
    await watch.nothing_changed()


async def test_a_group_whose_run_has_results_of_another_kind_stays_due(queue: Queue, watch: Watch) -> None:
    """A trainer may make any kind of key of its own stream: the verdict is applied when it is a stream again."""
    await queue.finish(await queue.hold(Stage.EVAL))
    verdict = await due(queue)
    await queue.command("SET", queue.keys.results(RUN), "no stream")
    await watch.look()
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await settle(queue, verdict)
    await watch.nothing_changed()
    await queue.command("DEL", queue.keys.results(RUN))
    assert (await settle(queue, verdict))[0].isdigit()


async def test_a_run_has_a_carry_over_until_the_last_group_of_it_has_its_record(queue: Queue) -> None:
    first, second = await drawn(queue, "g", "h")
    await finished(queue, first, second)
    await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000)
    for ref, left in ((first, [RUN.encode()]), (second, [])):
        verdict = await reserved_due(queue, ref, phase="ending", carried=True)
        assert (await settle(queue, verdict._replace(record=b"record", bytes=6))).partition("-")[0].isdigit()
        assert await queue.command("ZRANGE", queue.keys.carrying, 0, -1) == left
