"""submit: few samples begin with their submission, while the process that admits offers it."""

from collections.abc import Awaitable, Callable, Mapping

import pytest

from prorl_mq.schema.ids import group_ref
from prorl_mq.schema.items import Advance, Held, NewBatch
from prorl_mq.schema.messages import Stage
from prorl_mq.store.verbs.groups import ADMIT, BEGIN_AT_ONCE, TOLD_BYTES
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB

pytestmark = pytest.mark.anyio


@pytest.fixture
async def offering(queue: Queue) -> Queue:
    """A process that has the duty to admit, and offers three places on the first stage."""
    await queue.store.hold(ADMIT, lease_ms=60_000)
    await queue.store.offer(3, ["sums"])
    return queue


async def submitted(queue: Queue, group: str = "g", *, unbounded: bool = True, n: int = 2) -> str:
    """What is answered to a batch of one group."""
    batch, made = queue.new(group, batch=f"b of {group}", n=n)
    [answer] = await queue.store.submit(batch, [made], unbounded=unbounded)
    return answer


def _of_jobs(changed: Mapping[str, str], group: str) -> dict[str, str]:
    """What a submission has made for its jobs, whatever its group is called. Entries and tokens are counted on."""
    made = {place.replace(f":{group}", ":G"): value for place, value in changed.items()}
    kept = {place: value for place, value in made.items() if place.startswith(("+ job:", "+ group:", "+ deadlines"))}
    counted = (" entry", " token", " digest", " batch")
    return {place: value.replace(f":{group}", ":G") for place, value in kept.items() if not place.endswith(counted)}


async def test_what_begins_at_once_is_as_if_it_had_waited_and_been_admitted(offering: Queue, watch: Watch) -> None:
    await watch.look()
    assert await submitted(offering, "g") == "begun"
    at_once = await watch.changes()
    assert await submitted(offering, "h", unbounded=False) == "stored"
    assert await offering.store.admit(RUN, [await offering.wanted(group_ref(RUN, "h"))]) == [2]
    assert _of_jobs(at_once, "g") == _of_jobs(await watch.changes(), "h")
    assert at_once[f"+ job:{JOB} state"] == "queued"
    assert not [place for place in at_once if "backlog" in place or "changed" in place]


async def test_a_repeat_is_answered_already(offering: Queue, watch: Watch) -> None:
    assert await submitted(offering) == "begun"
    await watch.look()
    assert await submitted(offering) == "already"
    await watch.nothing_changed()


async def _bounded(queue: Queue) -> str:
    return await submitted(queue, unbounded=False)


async def _not_offered(queue: Queue) -> str:
    await queue.store.offer(0, ())
    return await submitted(queue)


async def _of_another_family(queue: Queue) -> str:
    await queue.store.offer(3, ["others"])
    return await submitted(queue)


async def _without_the_duty(queue: Queue) -> str:
    await queue.store.resign(ADMIT)
    return await submitted(queue)


async def _of_another_holder(queue: Queue) -> str:
    await queue.store.resign(ADMIT)
    await queue.worker("other").store.hold(ADMIT, lease_ms=60_000)
    return await submitted(queue)


async def _behind_another(queue: Queue) -> str:
    await submitted(queue, "before", n=9)
    return await submitted(queue)


async def _without_room(queue: Queue) -> str:
    assert await submitted(queue, "before") == "begun"
    return await submitted(queue)


async def _while_its_run_is_paused(queue: Queue) -> str:
    await queue.command("ZADD", queue.keys.paused_runs, await queue.store.now_ms() + 60_000, RUN)
    return await submitted(queue)


async def _too_many(queue: Queue) -> str:
    await queue.store.offer(1_000, ["sums"])
    return await submitted(queue, n=BEGIN_AT_ONCE + 1)


@pytest.mark.parametrize(
    "case",
    [
        _bounded, _not_offered, _of_another_family, _without_the_duty, _of_another_holder, _behind_another,
        _without_room, _while_its_run_is_paused, _too_many,
    ],
)  # fmt: skip
async def test_else_it_waits_in_its_backlog(case: Callable[[Queue], Awaitable[str]], offering: Queue) -> None:
    assert await case(offering) == "stored"
    assert await offering.command("ZSCORE", offering.keys.backlog(RUN), GROUP) is not None
    assert await offering.command("ZSCORE", offering.keys.admit_bell, RUN) is not None
    assert await offering.command("EXISTS", offering.keys.job(JOB)) == 0


async def test_the_groups_of_a_call_begin_together_or_wait_together(offering: Queue) -> None:
    batch, first = offering.new("g", n=2)
    _, second = offering.new("h", n=2)
    batch = NewBatch(RUN, batch.ref, "digest", 2, 4)
    assert await offering.store.submit(batch, [first, second], unbounded=True) == ["stored", "stored"]
    await offering.command("DEL", offering.keys.admit_bell)
    await offering.store.offer(4, ["sums"])
    batch, first = offering.new("i", batch="b2", n=2)
    _, second = offering.new("j", batch="b2", n=2)
    batch = NewBatch(RUN, batch.ref, "digest", 2, 4)
    assert await offering.store.submit(batch, [first, second], unbounded=True) == ["begun", "begun"]
    assert await offering.command("HGET", offering.keys.in_flight, RUN) == b"4"
    assert await offering.command("HGET", offering.keys.unacked, RUN) == b"2"
    assert [each.ref for each in await offering.read(Stage.INIT)] == [
        f"{RUN}:{name}:{index}" for name in "ij" for index in range(2)
    ]


async def test_an_offer_ends_by_itself(offering: Queue) -> None:
    assert 0 < await offering.command("PTTL", offering.keys.offer) <= 3_000


async def test_the_first_entry_has_its_groups_spec_and_hands_it_on_and_never_the_sealed_part(offering: Queue) -> None:
    batch, group = offering.new(n=2, sealed={"answer": "SECRET"})
    assert await offering.store.submit(batch, [group], unbounded=True) == ["begun"]
    entries = await offering.read(Stage.INIT)
    assert [each.told for each in entries] == [group.open, None]
    held = [
        Held(each.ref, each.claim.token, each.entry, Stage.INIT, None, "policy", told=each.told)
        for each in entries
        if each.claim is not None
    ]
    assert await offering.store.advance([Advance(each, None, b"from init") for each in held]) == ["advanced"] * 2
    later = await offering.read(Stage.RUN)
    assert [each.told for each in later] == [group.open, None]
    assert [each.claim.carry for each in later if each.claim] == [b"from init"] * 2
    assert b"SECRET" not in repr(await offering.command("XRANGE", offering.keys.stage(Stage.RUN), "-", "+")).encode()


@pytest.mark.parametrize(("size", "told"), [(1_000, True), (TOLD_BYTES, False)])
async def test_a_long_spec_does_not_go_with_its_entry(size: int, told: bool, offering: Queue) -> None:
    batch, group = offering.new(payload={"question": "x" * size})
    group = group._replace(sealed=b"")
    assert await offering.store.submit(batch, [group], unbounded=True) == ["begun"]
    [entry] = await offering.read(Stage.INIT)
    assert entry.told == (group.open if told else None)
