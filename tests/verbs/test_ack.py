"""ack: results that the trainer has are deleted with all that belongs to them."""

import pytest

from prorl_mq.schema.ids import BatchRef, Token, group_ref, job_ref
from prorl_mq.schema.items import Ack, Advance
from prorl_mq.schema.messages import Stage
from prorl_mq.store import results
from prorl_mq.store.results import acknowledge, collect
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB, G

pytestmark = pytest.mark.anyio


BATCH = BatchRef("acme:r:b")


async def published(queue: Queue) -> Ack:
    """A result with a blob of 100 bytes."""
    held = await queue.hold(Stage.RUN)
    blob = await queue.blob(held)
    await queue.store.advance([Advance(held, None, b"c", blob, 100)])
    [held] = await queue.take(Stage.EVAL)
    await queue.finish(held, trajectory=blob, trajectory_bytes=100)
    await queue.settle()
    [result] = await queue.results()
    return Ack(result.cursor, GROUP, BATCH, [blob], len(result.record) + 100, admitted=True)


async def test_the_result_its_group_and_its_blobs_are_deleted(queue: Queue, watch: Watch) -> None:
    item = await published(queue)
    await watch.look()
    assert await queue.store.ack(RUN, [item]) == ["acked"]
    assert await watch.changes() == {
        f"+ batch:acme:r:b g:{GROUP}": "digest of g {}",
        f"- {G}": "hash",
        f"- {G} bytes": str(item.bytes),
        f"- {G} cursor": "<cursor>",
        f"- {G} digest": "digest of g {}",
        f"- {G} verdict": "accepted",
        f"- blob:{JOB}:T2:trajectory": "string",
        f"- blob:{JOB}:T2:trajectory value": "tokens",
        "- results:acme:r#1": "<packed>",
        "- unacked": "hash",
        "- unacked acme:r": "1",
        "run:acme:r bytes": f"{item.bytes} → 0",
    }


async def test_a_repeat_is_answered_already_also_when_it_was_the_last_result(queue: Queue, watch: Watch) -> None:
    item = await published(queue)
    await queue.store.ack(RUN, [item])
    await watch.look()
    assert await queue.store.ack(RUN, [item]) == ["already"]
    await watch.nothing_changed()


async def test_a_run_that_is_gone_is_not_made_again_by_its_last_acknowledgement(queue: Queue) -> None:
    """A key of its bytes alone would have no owner."""
    item = await published(queue)
    await queue.command("DEL", queue.keys.run(RUN))
    assert await queue.store.ack(RUN, [item]) == ["acked"]
    assert await queue.command("EXISTS", queue.keys.run(RUN)) == 0


async def test_a_group_of_thousands_of_trajectories_goes_with_all_of_them(queue: Queue) -> None:
    """More keys than Lua's `unpack` takes at once."""
    item = await published(queue)
    more = [queue.keys.blob(job_ref(GROUP, place), Token("t"), "trajectory") for place in range(8_200)]
    await queue.command("MSET", *(word for name in more for word in (name, "x")))
    assert await queue.store.ack(RUN, [item._replace(blobs=[*item.blobs, *more])]) == ["acked"]
    assert await queue.command("EXISTS", *item.blobs, *more, queue.keys.group(GROUP)) == 0


async def test_acknowledged_at_once_are_as_many_groups_as_have_a_thousand_trajectories(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "BLOBS_AT_ONCE", 2)
    held = {}
    for name in "abcde":
        await queue.admitted(name, batch=name)
        [job] = await queue.take(Stage.INIT)
        blob = await queue.blob(job)
        await queue.finish(job, trajectory=blob, trajectory_bytes=100)
        held[name] = blob
    await queue.settle()
    cursors = [result.cursor for result in await queue.results()]
    assert await acknowledge(queue.store, RUN, cursors) == 5
    assert await queue.command("EXISTS", *held.values()) == 0


async def test_cursors_of_the_last_epochs_are_taken(queue: Queue) -> None:
    """They have more digits from the 4,547th restart on, and are rounded before."""
    await queue.command("HSET", queue.keys.epoch, "number", 4_000_000)
    queue.store.epoch = ""
    cursors = []
    for name in "ab":
        await queue.admitted(name, batch=name)
        [held] = await queue.take(Stage.INIT)
        await queue.finish(held)
        await queue.settle()
        cursors = [result.cursor for result in await collect(queue.store, RUN, after="0", wait_ms=0)]
    assert len(cursors[0].partition("-")[0]) == 19
    assert [each.cursor for each in await collect(queue.store, RUN, after=cursors[0], wait_ms=0)] == cursors[1:]
    assert await acknowledge(queue.store, RUN, cursors) == 2


async def test_what_is_left_is_on_the_permanent_list_or_has_a_ttl(queue: Queue, watch: Watch) -> None:
    item = await published(queue)
    await queue.store.ack(RUN, [item])
    flat = (await watch.now()).flat
    left = {place for place in flat if " " not in place}
    mortal = {place for place in left if f"{place} ttl" in flat}
    assert mortal == {"batch:acme:r:b", f"job:{JOB}"}
    assert left - mortal == {
        "batches:acme:r", "bytes:eval", "changed:admit", "counters", "due", "events", "lanes", "pool:policy",
        "pool:policy:info", "pools", "results:acme:r", "run:acme:r", "runs", "stage:eval", "stage:init", "stage:run",
        "stage:run@n1", "stage:init!", "stage:run!", "stage:run!@n1",
    }  # fmt: skip


async def test_results_that_are_left_keep_their_stream(queue: Queue) -> None:
    for name in ("g", "h"):
        await queue.admitted(name, batch=name)
    for held in await queue.take(Stage.INIT):
        await queue.finish(held)
    await queue.settle()
    first, second = await queue.results()
    assert await acknowledge(queue.store, RUN, [first.cursor]) == 1
    assert [result.cursor for result in await queue.results()] == [second.cursor]
    assert await queue.command("EXISTS", queue.keys.group(group_ref(RUN, "h"))) == 1


async def test_a_cursor_is_never_given_twice(queue: Queue) -> None:
    """The clock goes back an hour after the last result was acknowledged: the next one comes after it all the same."""
    item = await published(queue)
    await queue.store.ack(RUN, [item])
    await queue.command("HSET", queue.keys.epoch, "offset_ms", -3_600_000)
    await queue.admitted("h", batch="b2")
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    await queue.settle()
    [after] = await collect(queue.store, RUN, after=item.cursor)
    assert [int(part) for part in after.cursor.split("-")] > [int(part) for part in item.cursor.split("-")]


async def test_the_digest_stays_with_the_batch_so_that_a_repeated_submit_is_known(queue: Queue) -> None:
    item = await published(queue)
    await queue.store.ack(RUN, [item])
    batch, group = queue.new()
    assert await queue.store.submit(batch, [group]) == ["already"]


@pytest.mark.parametrize("pick", [slice(None, None, 3), slice(None, None, -1), slice(2, 3), slice(0, 9, 8)])
async def test_any_choice_of_results_is_acknowledged_and_no_other(queue: Queue, pick: slice) -> None:
    """They are read together, and what lies between them may be more than is read."""
    for name in "abcdefghi":
        await queue.admitted(name, batch=name)
        for held in await queue.take(Stage.INIT):
            await queue.finish(held)
        await queue.settle()
    cursors = [result.cursor for result in await queue.results()]
    chosen = cursors[pick]
    assert await acknowledge(queue.store, RUN, ["0", *chosen, *chosen, f"{1 << 60}-7"]) == len(chosen)
    assert [result.cursor for result in await queue.results()] == [each for each in cursors if each not in chosen]
    assert await acknowledge(queue.store, RUN, cursors) == len(cursors) - len(chosen)
