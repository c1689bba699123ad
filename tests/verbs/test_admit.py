"""admit: wanted samples of groups become jobs on the first stage."""

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.messages import GroupRecord, Limits, Outcome, Stage
from prorl_mq.store.verbs.groups import JOBS_AT_ONCE
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB, G, J

pytestmark = pytest.mark.anyio


async def test_each_wanted_sample_becomes_a_queued_job_and_the_group_leaves_the_backlog(
    queue: Queue, watch: Watch
) -> None:
    await queue.submit(n=2)
    await watch.look()
    assert await queue.store.admit(RUN, [await queue.wanted(GROUP)]) == [2]
    changed = await watch.changes()
    other = {place: value for place, value in changed.items() if "g:1" not in place and "g:1" not in value}
    assert other == {
        f"+ {J}": "hash",
        f"+ {J} at": "<ms>",
        f"+ {J} deadline": "<ms>",
        f"+ {J} entry": "stage:init#1",
        f"+ {J} line": "admit init submitted_ms=; ",
        f"+ {J} stage": "init",
        f"+ {J} state": "queued",
        f"+ {J} token": "T1",
        f"+ {J} stream": "stage:init",
        f"+ deadlines {JOB}": "<ms>",
        "+ in_flight": "hash",
        "+ in_flight acme:r": "2",
        "+ stage:init#1": f"j={JOB}",
        "+ unacked": "hash",
        "+ unacked acme:r": "1",
        "- backlog:acme:r acme:r:g": "<ms>",
        f"{G} next": "0 → 2",
        f"{G} open": "0 → 2",
        f"{G} wanted": "2 → 0",
    }
    assert changed["+ job:acme:r:g:1 entry"] == "stage:init#2"


async def test_the_deadline_is_the_total_limit_from_the_admission(queue: Queue) -> None:
    earliest = await queue.store.now_ms()
    await queue.admitted(limits=Limits(total_ms=5_000))
    latest = await queue.store.now_ms()
    deadline = int(await queue.command("ZSCORE", queue.keys.deadlines, JOB))
    assert earliest + 5_000 <= deadline <= latest + 5_000
    assert (await queue.snapshot(JOB)).deadline_ms == deadline


async def test_a_repeat_makes_no_second_job(queue: Queue, watch: Watch) -> None:
    await queue.submit()
    seen = await queue.wanted(GROUP)
    await queue.store.admit(RUN, [seen])
    await watch.look()
    assert await queue.store.admit(RUN, [seen]) == [-1]
    await watch.nothing_changed()


async def test_a_group_that_has_changed_since_it_was_seen_is_left_alone_and_the_others_are_admitted(
    queue: Queue, watch: Watch
) -> None:
    await queue.submit("g")
    await queue.submit("h", batch="b2", n=2)
    good = await queue.wanted(GROUP)
    wrong = Wanted((await queue.wanted(await queue.submit("h", batch="b2", n=2))).ref, 0, 1, 1_000)
    await watch.look()
    assert await queue.store.admit(RUN, [wrong, good]) == [-1, 1]
    changed = await watch.changes()
    assert f"+ {J}" in changed
    assert not [place for place in changed if ":h" in place]


async def test_a_group_that_is_gone_gives_nothing(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await queue.store.admit(RUN, [Wanted(GROUP, 0, 1, 1_000)]) == [-1]
    await watch.nothing_changed()


async def test_a_withdrawn_group_is_not_admitted(queue: Queue, watch: Watch) -> None:
    await queue.submit()
    seen = await queue.wanted(GROUP)
    await queue.withdraw(GROUP)
    await watch.look()
    assert await queue.store.admit(RUN, [seen]) == [-1]
    await watch.nothing_changed()


async def test_a_refill_becomes_the_next_sample(queue: Queue) -> None:
    await queue.admitted(max_refills=1)
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held, Outcome.INFRA_ERROR)
    assert await queue.settle() == ["refilled"]
    assert await queue.store.admit(RUN, [await queue.wanted(GROUP)]) == [1]
    [again] = await queue.take(Stage.INIT)
    assert again.ref == "acme:r:g:1"


async def test_a_large_group_is_admitted_in_slices_and_counts_once(queue: Queue) -> None:
    ref = await queue.submit(n=JOBS_AT_ONCE + 2)
    assert await queue.store.admit(RUN, [await queue.wanted(ref)]) == [JOBS_AT_ONCE + 2]
    assert await queue.command("XLEN", queue.keys.stage(Stage.INIT)) == JOBS_AT_ONCE + 2
    assert await queue.command("HGETALL", queue.keys.unacked) == [RUN.encode(), b"1"]
    assert await queue.command("EXISTS", queue.keys.backlog(RUN)) == 0


async def test_half_a_group_gets_no_verdict(queue: Queue, watch: Watch) -> None:
    """The process died between two slices: all that was admitted has ended, and the rest still waits."""
    await queue.submit(n=2)
    seen = await queue.wanted(GROUP)
    assert await queue.store.admit_part(RUN, [(seen, 1)]) == [1]
    assert await queue.store.admit_part(RUN, [(seen, 1)]) == [-1], "a repeat"
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    assert await queue.settle() == ["already"]
    assert await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1) == [GROUP.encode()]
    rest = await queue.wanted(GROUP)
    assert (rest.next, rest.wanted) == (1, 1)
    assert await queue.store.admit(RUN, [rest]) == [1]
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    assert await queue.settle() != ["already"]
    [result] = await queue.results()
    assert len(decode(result.record, GroupRecord).samples) == 2


async def test_half_a_group_that_is_cancelled_gets_its_verdict(queue: Queue) -> None:
    await queue.submit(n=2)
    assert await queue.store.admit_part(RUN, [(await queue.wanted(GROUP), 1)]) == [1]
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    assert await queue.settle() == ["already"]
    await queue.withdraw(GROUP)
    assert await queue.settle() != ["already"]
    assert len(await queue.results()) == 1


async def test_a_group_counts_as_unacknowledged_once_and_each_of_its_jobs_as_in_flight(queue: Queue) -> None:
    """Its refills are jobs, but no second group."""
    await queue.admitted(n=2, max_refills=2)
    for held in await queue.take(Stage.INIT):
        await queue.finish(held, Outcome.INFRA_ERROR)
    assert await queue.settle() == ["refilled"]
    assert await queue.command("HGETALL", queue.keys.in_flight) == []
    assert await queue.store.admit(RUN, [await queue.wanted(GROUP)]) == [2]
    assert await queue.command("HGETALL", queue.keys.in_flight) == [RUN.encode(), b"2"]
    assert await queue.command("HGETALL", queue.keys.unacked) == [RUN.encode(), b"1"]


async def test_while_another_process_has_the_duty_nothing_is_admitted(queue: Queue, watch: Watch) -> None:
    """A process that was frozen in the middle of its turn has counted too little in flight."""
    await queue.submit()
    await queue.worker("w2").store.hold("admit", lease_ms=60_000)
    await watch.look()
    assert await queue.store.admit(RUN, [await queue.wanted(GROUP)]) == [-1]
    await watch.nothing_changed()
    assert await queue.worker("w2").store.admit(RUN, [await queue.wanted(GROUP)]) == [1]


async def test_a_group_id_that_is_used_again_gets_jobs_that_remember_nothing(queue: Queue, watch: Watch) -> None:
    """The jobs of an acknowledged group linger; a new group of the same name must not inherit their end."""
    for batch in ("b1", "b2"):
        await watch.look()
        await queue.admitted("g", batch=batch)
        changed = await watch.changes()
        assert changed.get(f"- {J} ttl", "") == ("yes" if batch == "b2" else "")
        job = await queue.command("HKEYS", queue.keys.job(JOB))
        assert sorted(job) == [b"at", b"deadline", b"entry", b"line", b"stage", b"state", b"stream", b"token"]
        held = (await queue.take(Stage.INIT))[0]
        await queue.finish(held)
        await queue.settle()
        assert await queue.ack_all() == 1
