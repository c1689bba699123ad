"""draw: groups leave a reservoir for the backlog and are a batch's groups in play."""

import pytest

from prorl_mq.rules.groups import Withdrawal
from prorl_mq.schema.ids import batch_ref, group_ref
from prorl_mq.schema.messages import Purpose
from prorl_mq.store import groups
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, G
from tests.verbs.reserved import BATCH, B, drawn, submit

pytestmark = pytest.mark.anyio


async def test_a_group_joins_the_backlog_with_its_place_in_the_order(queue: Queue, watch: Watch) -> None:
    await submit(queue, "g")
    await watch.look()
    assert await queue.store.draw(BATCH, BATCH, {GROUP: BATCH}, drawn=0, version=3) == 1
    assert await watch.changes() == {
        f"+ backlog:{RUN} {GROUP}": "<ms>",
        f"+ changed:admit {RUN}": "0",
        f"+ drawn:{BATCH} {GROUP}": "1",
        f"+ {B} drawn": "1",
        f"+ {G} version": "3",
        f"+ run:{RUN} order": "1",
        f"- reservoir:{BATCH} {GROUP}": "<ms>",
        f"{G} order": "0 → 1",
    }


@pytest.mark.parametrize("version", [2**53 + 1, 1_763_800_000_123_456_789, 2**63 - 1])
async def test_a_version_that_no_float_can_hold_is_kept_exactly(queue: Queue, version: int) -> None:
    await submit(queue, "g")
    await queue.store.draw(BATCH, BATCH, {GROUP: BATCH}, drawn=0, version=version)
    assert await groups.versions(queue.store, [GROUP]) == {GROUP: version}


async def test_two_that_saw_the_same_batch_do_not_both_draw(queue: Queue, watch: Watch) -> None:
    refs = await submit(queue, "g", "h")
    assert await queue.store.draw(BATCH, BATCH, {refs[0]: BATCH}, drawn=0) == 1
    await watch.look()
    assert await queue.store.draw(BATCH, BATCH, {refs[1]: BATCH}, drawn=0) == -1
    await watch.nothing_changed()


async def test_a_batch_that_has_ended_draws_nothing(queue: Queue, watch: Watch) -> None:
    refs = await submit(queue, "g")
    await queue.store.halt(BATCH, "cancelled")
    await watch.look()
    assert await queue.store.draw(BATCH, BATCH, dict.fromkeys(refs, BATCH), drawn=0) == -1
    await watch.nothing_changed()


async def test_a_group_that_was_withdrawn_is_not_drawn(queue: Queue) -> None:
    [ref] = await submit(queue, "g")
    await queue.store.withdraw(RUN, {ref: BATCH}, Withdrawal.CANCEL)
    assert await queue.store.draw(BATCH, BATCH, {ref: BATCH}, drawn=0) == 0
    assert await queue.command("EXISTS", queue.keys.backlog(RUN), queue.keys.drawn(BATCH)) == 0


async def test_a_prompt_of_the_run_leaves_the_batch_that_brought_it(queue: Queue, watch: Watch) -> None:
    ahead, group = queue.new("p", batch="ahead")
    await queue.store.submit(ahead._replace(waits_in=RUN), [group])
    await submit(queue)
    await watch.look()
    assert await queue.store.draw(BATCH, RUN, {group.ref: ahead.ref}, drawn=0) == 1
    changed = await watch.changes()
    assert changed[f"group:{group.ref} batch"] == f"{ahead.ref} → {BATCH}"
    assert changed[f"+ {B} joined"] == "1"
    assert (changed[f"batch:{ahead.ref} closed"], changed[f"+ batch:{ahead.ref} v:drawn"]) == ("0 → 1", "1")


async def test_groups_keep_their_order(queue: Queue) -> None:
    await drawn(queue, "g3", "g1", "g2")
    order = await queue.command("ZRANGE", queue.keys.drawn(BATCH), 0, -1)
    backlog = await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1)
    assert order == backlog == [b"acme:r:g3", b"acme:r:g1", b"acme:r:g2"]


async def test_a_drawn_group_stands_in_the_backlog_as_its_purpose_and_priority_say(queue: Queue) -> None:
    """As if it had been submitted at this moment."""
    for name, about in {
        "train": {}, "urgent": {"priority": 1}, "eval": {"purpose": Purpose.EVAL},
    }.items():  # fmt: skip
        batch, group = queue.new(name, batch=f"b-{name}", **about)
        await queue.store.submit(batch._replace(waits_in=RUN), [group])
    await submit(queue)
    refs = [group_ref(RUN, name) for name in ("train", "urgent", "eval")]
    await queue.store.draw(BATCH, RUN, {ref: batch_ref(RUN, "none") for ref in refs}, drawn=0)
    order = await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1)
    assert order == [b"acme:r:eval", b"acme:r:urgent", b"acme:r:train"]
