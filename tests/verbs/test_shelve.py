"""shelve: groups that the archive has, or passes over, are let go with their blobs and their place in its bound."""

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import GroupRecord, Stage
from prorl_mq.store import results
from prorl_mq.store.archive import waiting
from prorl_mq.store.results import acknowledge
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.lost import Act, case
from tests.verbs.places import GROUP, JOB, G

pytestmark = pytest.mark.anyio


async def archive(queue: Queue, most_bytes: int = 10_000) -> None:
    """There is one from now on."""
    until_ms = 2 * await queue.store.now_ms()
    await waiting.publish(queue.store, until_ms=until_ms, most_bytes=most_bytes, fault="")


async def published(queue: Queue, group: str = "g") -> str:
    """A result with a blob of 100 bytes: its cursor."""
    held = await queue.hold(Stage.RUN, group=group, batch=f"b-{group}")
    blob = await queue.blob(held)
    await queue.store.advance([Advance(held, None, b"c", blob, 100)])
    [held] = await queue.take(Stage.EVAL)
    await queue.finish(held, trajectory=blob, trajectory_bytes=100)
    await queue.settle()
    return (await queue.results())[-1].cursor


async def waits(queue: Queue, group: str = "g") -> tuple[str, list[str]]:
    """A group that waits: its entry, and its blobs."""
    assert await acknowledge(queue.store, RUN, [await published(queue, group)]) == 1
    found = (await waiting.page(queue.store, RUN, limit=10))[-1]
    return found.entry, results.blobs(queue.store, RUN, decode(found.record, GroupRecord))


async def blobs(queue: Queue) -> int:
    return len(await queue.command("KEYS", f"{queue.keys.prefix}blob:*"))


async def test_with_an_archive_an_acknowledged_record_waits_and_keeps_its_blobs(queue: Queue, watch: Watch) -> None:
    await archive(queue)
    cursor = await published(queue)
    await watch.look()
    assert await acknowledge(queue.store, RUN, [cursor]) == 1
    found = await watch.changes()
    [kept] = await waiting.page(queue.store, RUN, limit=10)
    assert {place for place in found if not place.startswith(("- ", "+ batch", "run:"))} == {
        "+ archive:acme:r#1", "+ archiving acme:r", "+ archive_state bytes", "+ archive_state groups",
    }  # fmt: skip
    assert (await waiting.state(queue.store)).bytes == kept.bytes == len(kept.record) + 100
    assert not [place for place in found if "blob:" in place]
    assert f"- {G} digest" in found
    assert (found["run:acme:r bytes"], found["- unacked acme:r"]) == (f"{kept.bytes} → 0", "1")


async def test_a_group_that_finds_no_room_is_passed_over_and_its_blobs_go(queue: Queue) -> None:
    await archive(queue, most_bytes=10)
    assert await acknowledge(queue.store, RUN, [await published(queue)]) == 1
    state = await waiting.state(queue.store)
    assert (state.groups, state.bytes, state.passed_over, await blobs(queue)) == (0, 0, 1, 0)


async def test_an_archive_that_nobody_has_seen_again_keeps_nothing(queue: Queue) -> None:
    await waiting.publish(queue.store, until_ms=1, most_bytes=10_000, fault="")
    assert await acknowledge(queue.store, RUN, [await published(queue)]) == 1
    assert (await waiting.runs(queue.store), await blobs(queue)) == ({}, 0)


async def test_what_was_never_admitted_has_nothing_to_archive(queue: Queue) -> None:
    await archive(queue)
    ref = await queue.submit()
    assert await queue.withdraw(ref) == [0]
    await queue.settle()
    assert await queue.ack_all() == 1
    assert await waiting.runs(queue.store) == {}


async def test_the_last_group_takes_the_stream_along(queue: Queue, watch: Watch) -> None:
    await archive(queue)
    entry, names = await waits(queue)
    other, _ = await waits(queue, "h")
    await watch.look()
    assert await queue.store.shelve(RUN, {entry: names}, waiting.ARCHIVED) == ["shelved"]
    found = await watch.changes()
    assert found["+ archive_state archived"] == "1"
    assert [place for place in found if place.startswith("- ")] == [
        "- archive:acme:r#1",
        *(f"- blob:{JOB}:T2:trajectory{more}" for more in ("", " value")),
    ]
    assert await queue.store.shelve(RUN, {other: []}, waiting.ARCHIVED) == ["shelved"]
    assert (await waiting.runs(queue.store), await queue.command("EXISTS", queue.keys.archive(RUN))) == ({}, 0)
    state = await waiting.state(queue.store)
    assert (state.groups, state.bytes, state.archived) == (0, 0, 2)


async def test_an_entry_that_does_not_wait_is_answered_already_and_its_blobs_are_left(
    queue: Queue, watch: Watch
) -> None:
    await archive(queue)
    _, names = await waits(queue)
    await watch.look()
    assert await queue.store.shelve(RUN, {"1-1": names}, waiting.ARCHIVED) == ["already"]
    await watch.nothing_changed()


async def test_a_key_of_another_kind_in_the_place_of_the_stream_keeps_no_acknowledgement_from_its_effect(
    queue: Queue,
) -> None:
    await archive(queue)
    cursor = await published(queue)
    await queue.command("SET", queue.keys.archive(RUN), "x")
    assert await acknowledge(queue.store, RUN, [cursor]) == 1
    assert (await queue.results(), await queue.command("EXISTS", queue.keys.group(GROUP))) == ([], 0)


@case("shelve", ["already"])
async def _(queue: Queue) -> Act:
    await archive(queue)
    await queue.finish(await queue.hold(Stage.EVAL))
    await queue.settle()
    await queue.ack_all()
    [found] = await waiting.page(queue.store, RUN, limit=10)

    async def act(q: Queue) -> list[str]:
        return await q.store.shelve(RUN, {found.entry: []}, waiting.ARCHIVED)

    return act
