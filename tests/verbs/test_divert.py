"""divert: an entry that its reader lacks the task family for moves to the lane of that one, and no attempt is lost."""

import pytest

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.items import Advance, Entry, Lane, Stop
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import families
from tests.support.queue import Queue, record
from tests.support.watch import Watch
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio

FAMILY = "sums"
LANE = Lane(Stage.INIT, family=FAMILY)


async def diverted(queue: Queue, lane: Lane) -> list[str]:
    """What is read from a stream, put on the lanes of its family."""
    entries = await queue.read(lane.stage, lane.node)
    return await queue.store.divert(lane, entries, [FAMILY] * len(entries))


async def test_the_job_waits_on_the_lane_without_an_attempt(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    await watch.look()
    assert await queue.store.divert(Lane(Stage.INIT), entries, [FAMILY]) == ["diverted"]
    assert await watch.changes() == {
        "- pending stage:init#1": "w1",
        "+ lanes:families init#sums": "member",
        "+ stage:init#sums#1": f"j={JOB}",
        "- stage:init#1": f"j={JOB}",
        f"{J} entry": "stage:init#1 → stage:init#sums#1",
        f"{J} line": "… divert init w1;",
        f"{J} stream": "stage:init → stage:init#sums",
        f"{J} token": "T1 → T2",
    }
    [held] = await queue.take(*LANE[:2], family=FAMILY)
    job = await queue.snapshot(held.ref)
    assert (job.attempts, job.deaths, job.releases) == (0, 0, 0)


async def test_a_lane_of_a_node_keeps_the_node(queue: Queue) -> None:
    """The sandbox of the job lives there."""
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    assert await diverted(queue, Lane(Stage.RUN, "n1")) == ["diverted"]
    assert (await queue.snapshot(JOB)).stream == queue.keys.stage(Stage.RUN, "n1", FAMILY)
    assert await families.look(queue.store) == {Lane(Stage.RUN, "n1", FAMILY)}


async def test_a_job_that_is_leased_ended_or_behind_another_entry_stays_as_it_is(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    entry, lane = Entry(held.ref, held.entry), Lane(Stage.RUN)
    await watch.look()
    assert await queue.store.divert(lane, [entry], [FAMILY]) == ["stale"]
    assert await queue.store.divert(Lane(Stage.EVAL), [entry], [FAMILY]) == ["stale"]
    await watch.nothing_changed()
    await queue.store.release([held])
    assert await queue.store.divert(lane, [entry], [FAMILY]) == ["stale"]
    await queue.store.stop(Verb.CANCEL, [Stop(JOB, record(JOB, Outcome.CANCELLED), queue.keys.stage(Stage.RUN))])
    assert await queue.store.divert(lane, [entry], [FAMILY]) == ["stale"]
    assert (await queue.snapshot(JOB)).state == State.DONE
    gone = Entry(type(JOB)("acme:r:other:0"), held.entry)
    assert await queue.store.divert(lane, [gone], [FAMILY]) == ["gone"]


async def test_a_lane_that_was_retired_is_made_again_by_whoever_puts_a_job_on_it(queue: Queue) -> None:
    """A worker that saw it a moment ago advances a job to it, and admission puts one on it."""
    run = Lane(Stage.RUN, family=FAMILY)
    queue.store.family_lanes = frozenset({run})
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, None, b"c", family=FAMILY)])
    assert [each.ref for each in await queue.take(Stage.RUN, family=FAMILY)] == [JOB]
    other = await queue.submit("other", batch="b2")
    assert await queue.store.admit(RunRef(other.rpartition(":")[0]), [await queue.wanted(other)], lane=FAMILY) == [1]
    assert len(await queue.take(Stage.INIT, family=FAMILY)) == 1
    assert await families.look(queue.store) == {LANE, run}


async def test_an_empty_lane_is_retired_and_one_with_a_job_stays(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await diverted(queue, Lane(Stage.INIT))
    assert await queue.store.retire_family_lane(LANE) == "in use"
    [held] = await queue.take(Stage.INIT, family=FAMILY)
    assert await queue.store.retire_family_lane(LANE) == "in use"
    await queue.store.advance([Advance(held, None, b"c")])
    await watch.look()
    assert await queue.store.retire_family_lane(LANE) == "retired"
    assert "- lanes:families init#sums" in await watch.changes()
    assert await queue.command("EXISTS", queue.keys.stage(*LANE)) == 0
