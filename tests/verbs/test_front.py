"""Jobs with a log of turns wait on the lane in front, whatever has put them back; those without one do not."""

from collections.abc import Awaitable, Callable

import pytest

from prorl_mq.duties.reap import decide
from prorl_mq.schema.items import Advance, Fail, Held, Lane, Logged, Pause, Resume
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.status import PauseEnd
from tests.support.queue import Queue, spec
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio
Displaced = Callable[[Queue, Held], Awaitable[None]]


async def reaped(queue: Queue, _: Held) -> None:
    await queue.overdue(JOB)
    state, item = decide(await queue.snapshot(JOB), spec(), leased=True)
    assert await queue.store.reap(Verb.REAP, state, [item]) == ["requeued"]


async def released(queue: Queue, held: Held) -> None:
    assert await queue.store.release([held]) == ["released"]


async def failed(queue: Queue, held: Held) -> None:
    assert await queue.fail(held) == "delayed"
    await queue.backed_off(JOB)
    assert await queue.store.promote([(JOB, (await queue.snapshot(JOB)).stream)]) == ["promoted"]


async def resumed(queue: Queue, held: Held) -> None:
    await queue.store.pause([Pause(JOB, queue.keys.stage(*held.lane))], for_ms=60_000, ends=PauseEnd.RESUME)
    await queue.fail(held)
    job = await queue.snapshot(JOB)
    assert job.state == State.PAUSED
    assert await queue.store.resume([Resume(JOB, job.token, Stage.INIT)]) == ["resumed"]


async def evacuated(queue: Queue, held: Held) -> None:
    await released(queue, held)
    job = await queue.snapshot(JOB)
    _, item = decide(job, spec(), leased=False)
    item = item._replace(stage=Stage.INIT, unread=True, deaths=0)
    assert await queue.store.reap(Verb.EVACUATE, State.QUEUED, [item]) == ["requeued"]


@pytest.mark.parametrize("logs", [True, False], ids=["logged", "not logged"])
@pytest.mark.parametrize(
    ("displaced", "begun", "not_begun"),
    [
        (reaped, Lane(Stage.RUN, "n1"), Lane(Stage.INIT)),
        (released, Lane(Stage.RUN, "n1"), Lane(Stage.RUN, "n1")),
        (failed, Lane(Stage.INIT), Lane(Stage.INIT)),
        (resumed, Lane(Stage.INIT), Lane(Stage.INIT)),
        (evacuated, Lane(Stage.INIT), Lane(Stage.INIT)),
    ],
)
async def test_what_has_begun_waits_in_front_of_what_has_not(
    queue: Queue, displaced: Displaced, begun: Lane, not_begun: Lane, logs: bool
) -> None:
    held = await queue.hold(Stage.RUN, node="n1")
    if logs:
        assert await queue.store.log([Logged(held, 0, b"t one")]) == ["logged"]
    await displaced(queue, held)
    lane = begun.ahead if logs else not_begun
    assert queue.keys.lane((await queue.snapshot(JOB)).stream) == lane
    [entry] = await queue.read(*lane[:2], front=lane.front)
    assert entry.ref == JOB


async def test_it_keeps_its_place_through_init_and_loses_it_with_its_log(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN, node="n1")
    await queue.store.log([Logged(held, 0, b"t one")])
    await failed(queue, held)
    [held] = await queue.take(Stage.INIT, front=True)
    assert await queue.store.advance([Advance(held, "n1", b"c")]) == ["advanced"]
    [held] = await queue.take(Stage.RUN, "n1", front=True)
    assert await queue.store.fail([Fail(held, Stage.INIT, 0, "in doubt", forgets=True)]) == ["delayed"]
    assert (await queue.snapshot(JOB)).stream == queue.keys.stage(Stage.INIT)


async def test_what_is_scored_has_no_lane_in_front(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN, node="n1")
    await queue.store.log([Logged(held, 0, b"t one")])
    assert await queue.store.advance([Advance(held, None, b"c", "", 100)]) == ["advanced"]
    [held] = await queue.take(Stage.EVAL)
    assert await queue.store.release([held]) == ["released"]
    assert (await queue.snapshot(JOB)).stream == queue.keys.stage(Stage.EVAL)


async def test_a_worker_that_lacks_the_family_passes_it_on_in_front(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN, node="n1")
    await queue.store.log([Logged(held, 0, b"t one")])
    await released(queue, held)
    entries = await queue.read(Stage.RUN, "n1", front=True)
    lane = Lane(Stage.RUN, "n1", None, front=True)
    assert await queue.store.divert(lane, entries, ["sums"]) == ["diverted"]
    [held] = await queue.take(Stage.RUN, "n1", family="sums", front=True)
    assert held.lane == lane._replace(family="sums")
    assert await queue.store.release([held]) == ["released"]
    assert (await queue.snapshot(JOB)).stream == queue.keys.stage(*lane)


async def test_a_node_with_a_job_on_either_lane_keeps_both(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN, node="n1")
    await queue.store.log([Logged(held, 0, b"t one")])
    await released(queue, held)
    assert await queue.command("XLEN", queue.keys.stage(Stage.RUN, "n1")) == 0
    assert await queue.store.retire_lane("n1") == "in use"
    [held] = await queue.take(Stage.RUN, "n1", front=True)
    await queue.finish(held)
    assert await queue.store.retire_lane("n1") == "retired"
    assert await queue.command("EXISTS", queue.keys.stage(Stage.RUN, "n1", front=True)) == 0
