"""submit: groups of a batch are stored and stand in their run's backlog."""

import pytest

from prorl_mq.schema.items import NewBatch, NewGroup
from prorl_mq.schema.messages import Purpose, Stage
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import G
from tests.verbs.reserved import reserved

pytestmark = pytest.mark.anyio


async def test_a_group_is_stored_once_with_its_open_and_its_sealed_part(queue: Queue, watch: Watch) -> None:
    await watch.look()
    batch, group = queue.new(n=2)
    assert await queue.store.submit(batch, [group]) == ["stored"]
    assert await watch.changes() == {
        "+ batch:acme:r:b": "hash",
        "+ batch:acme:r:b at": "<ms>",
        "+ batch:acme:r:b closed": "0",
        "+ batch:acme:r:b digest": group.digest,
        "+ batch:acme:r:b groups": "1",
        "+ batch:acme:r:b jobs": "2",
        "+ backlog:acme:r acme:r:g": "<ms>",
        "+ batches:acme:r acme:r:b": "<ms>",
        "+ changed:admit acme:r": "0",
        f"+ {G}": "hash",
        f"+ {G} at": "<ms>",
        f"+ {G} batch": "acme:r:b",
        f"+ {G} digest": group.digest,
        f"+ {G} n": "2",
        f"+ {G} next": "0",
        f"+ {G} open": "0",
        f"+ {G} refills": "0",
        f"+ {G} family": "sums",
        f"+ {G} total_ms": "3600000",
        f"+ {G} wanted": "2",
        "+ groups:acme:r acme:r:g": "member",
        "+ groups:acme:r:b acme:r:g": "member",
        "+ open:acme:r:g": "string",
        "+ open:acme:r:g value": "<packed>",
        "+ run:acme:r": "hash",
        "+ run:acme:r seen": "<ms>",
        "+ runs acme:r": "<ms>",
        "+ sealed:acme:r:g": "string",
        "+ sealed:acme:r:g value": "<packed>",
    }


async def test_a_repeat_is_answered_already_and_changes_nothing(queue: Queue, watch: Watch) -> None:
    batch, group = queue.new()
    await queue.store.submit(batch, [group])
    await watch.look()
    assert await queue.store.submit(batch, [group]) == ["already"]
    await watch.nothing_changed()


async def test_a_repeat_after_the_work_has_begun_changes_nothing(queue: Queue, watch: Watch) -> None:
    batch, group = queue.new()
    await queue.admitted()
    await watch.look()
    assert await queue.store.submit(batch, [group]) == ["already"]
    await watch.nothing_changed()


async def test_a_repeat_after_the_acknowledgement_is_answered_already(queue: Queue, watch: Watch) -> None:
    """A trainer whose submit was answered late must not get the whole batch again."""
    batch, group = queue.new()
    [_] = await queue.admitted()
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    await queue.settle()
    assert await queue.ack_all() == 1
    await watch.look()
    assert await queue.store.submit(batch, [group]) == ["already"]
    await watch.nothing_changed()


async def test_another_body_under_the_same_group_id_is_a_conflict_and_nothing_of_the_call_is_stored(
    queue: Queue, watch: Watch
) -> None:
    await queue.submit("g", batch="b1")
    _, other = queue.new("g", batch="b2")
    batch, fresh = queue.new("h", batch="b2")
    await watch.look()
    assert await queue.store.submit(batch, [fresh, other]) == ["stored", "conflict"]
    await watch.nothing_changed()


async def test_another_body_under_the_same_batch_id_is_a_conflict(queue: Queue, watch: Watch) -> None:
    batch, group = queue.new()
    await queue.store.submit(batch, [group])
    await watch.look()
    other = NewBatch(RUN, batch.ref, "another digest", 1, 1)
    assert await queue.store.submit(other, [group]) == ["conflict"]
    await watch.nothing_changed()


async def test_a_group_without_secrets_has_no_sealed_key(queue: Queue, watch: Watch) -> None:
    batch, group = queue.new()
    await watch.look()
    bare = NewGroup(group.ref, group.digest, group.n, group.total_ms, group.open, b"")
    assert await queue.store.submit(batch, [bare]) == ["stored"]
    assert not [place for place in await watch.changes() if "sealed" in place]


async def test_the_later_groups_of_a_batch_join_its_earlier_ones(queue: Queue, watch: Watch) -> None:
    """A large batch comes in several calls; a call that was cut off is repeated with all of them."""
    batch, first = queue.new("g1")
    _, second = queue.new("g2")
    await queue.store.submit(batch, [first])
    await watch.look()
    assert await queue.store.submit(batch, [first, second]) == ["already", "stored"]
    changed = await watch.changes()
    assert "+ backlog:acme:r acme:r:g2" in changed
    assert not [place for place in changed if "g1" in place or place.startswith("batch:")]


async def test_groups_keep_the_order_in_which_they_came(queue: Queue) -> None:
    batch, _ = queue.new()
    names = [f"g{number}" for number in (3, 1, 2)]
    await queue.store.submit(batch, [queue.new(name)[1] for name in names])
    order = await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1)
    assert [ref.decode() for ref in order] == [f"acme:r:{name}" for name in names]


async def test_evaluation_stands_before_training_and_each_in_the_order_of_time_and_priority(queue: Queue) -> None:
    for name, about in {
        "first": {}, "second": {}, "urgent": {"priority": 1}, "patient": {"priority": -1},
        "eval": {"purpose": Purpose.EVAL, "priority": -9}, "eval-urgent": {"purpose": Purpose.EVAL},
    }.items():  # fmt: skip
        await queue.submit(name, batch=f"b-{name}", **about)
    order = await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1)
    assert [ref.decode().rpartition(":")[2] for ref in order] == [
        "eval-urgent", "eval", "urgent", "first", "second", "patient",
    ]  # fmt: skip


async def test_the_groups_of_a_dapo_batch_wait_in_its_reservoir(queue: Queue, watch: Watch) -> None:
    batch, groups = reserved(queue, "g", target=2)
    await watch.look()
    assert await queue.store.submit(batch, groups) == ["stored"]
    changed = await watch.changes()
    assert {place: value for place, value in changed.items() if "reservoir" in place or "dapo" in place} == {
        f"+ reservoir:{batch.ref} acme:r:g": "<ms>",
        f"+ dapo {batch.ref}": "<ms>",
    }
    row = {
        place.rpartition(" ")[2]: value for place, value in changed.items() if place.startswith(f"+ batch:{batch.ref} ")
    }
    assert (row["phase"], row["target"], row["stored"]) == ("open", "2", "1")
    assert (changed[f"+ {G} order"], changed[f"+ changed:draw {batch.ref}"]) == ("0", "0")
    assert not [place for place in changed if "changed:admit" in place]
    assert await queue.store.submit(batch, groups) == ["already"]
    await watch.nothing_changed()


async def test_a_dapo_batch_may_have_no_group_of_its_own(queue: Queue, watch: Watch) -> None:
    batch, _ = reserved(queue)
    assert await queue.store.submit(batch, []) == ["stored"]
    await watch.look()
    assert await queue.store.submit(batch, []) == ["already"]
    assert await queue.store.submit(batch._replace(digest="another"), []) == ["conflict"]
    await watch.nothing_changed()
