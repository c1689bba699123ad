"""log: records of turns are appended in their order by who has the lease, and go when nobody needs them any more."""

import pytest

from prorl_mq.duties.reap import decide
from prorl_mq.schema.ids import Token
from prorl_mq.schema.items import Advance, Fail, Held, Logged, Reap
from prorl_mq.schema.lifecycle import MOST_DEATHS, State, Verb
from prorl_mq.schema.messages import Limits, Outcome, Stage
from prorl_mq.service.cancel import cancel
from prorl_mq.store import jobs
from tests.support.queue import POOL, Queue, record, spec
from tests.support.watch import Watch
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio


async def logged(queue: Queue, *records: bytes) -> Held:
    """A job in RUN with these records in its log."""
    held = await queue.hold(Stage.RUN, node="n1")
    for place, each in enumerate(records):
        assert await queue.store.log([Logged(held, place, each)]) == ["logged"]
    return held


async def reap(queue: Queue, limits: Limits | None = None) -> str:
    await queue.overdue(JOB)
    state, item = decide(await queue.snapshot(JOB), spec(limits=limits or Limits()), leased=True)
    [answer] = await queue.worker("m").store.reap(Verb.REAP, state, [item])
    return answer


async def nothing_left(queue: Queue) -> None:
    fields = [field.decode() for field in await queue.command("HKEYS", queue.keys.job(JOB))]
    assert [field for field in fields if field.startswith("log")] == []


async def test_records_are_kept_in_their_order(queue: Queue, watch: Watch) -> None:
    held = await logged(queue)
    await watch.look()
    assert await queue.store.log([Logged(held, 0, b"w one"), Logged(held, 1, b"t two")]) == ["logged", "logged"]
    assert await watch.changes() == {
        f"+ {J} log:0": "w one",
        f"+ {J} log:1": "t two",
        f"+ {J} logged": "2",
        f"+ {J} progress": "0",
    }
    assert await jobs.log(queue.store, JOB) == [b"w one", b"t two"]


async def test_a_record_that_is_there_already_is_not_replaced(queue: Queue, watch: Watch) -> None:
    held = await logged(queue, b"one", b"two")
    await watch.look()
    assert await queue.store.log([Logged(held, 0, b"other"), Logged(held, 1, b"other")]) == ["already", "already"]
    await watch.nothing_changed()


async def test_where_records_are_missing_the_first_of_them_is_named(queue: Queue, watch: Watch) -> None:
    held = await logged(queue, b"one")
    await watch.look()
    assert await queue.store.log([Logged(held, 3, b"four")]) == ["1"]
    await watch.nothing_changed()


@pytest.mark.parametrize("other", ["token", "worker", "unclaimed", "stopping"])
async def test_who_does_not_have_the_lease_logs_nothing(queue: Queue, watch: Watch, other: str) -> None:
    held, store = await logged(queue, b"one"), queue.store
    if other == "token":
        held = held._replace(token=Token("1-abc.99"))
    elif other == "worker":
        store = queue.worker("w2").store
    elif other == "unclaimed":
        assert await reap(queue) == "requeued"
        [entry] = await queue.worker("w2").read(Stage.RUN, "n1", front=True)
        store = queue.worker("w2").store
        held = held._replace(token=Token((await queue.snapshot(JOB)).token), entry=entry.entry)
    else:
        await cancel(queue.store, "job", JOB)
    await watch.look()
    assert await store.log([Logged(held, 1, b"two")]) == ["stale"]
    assert await store.log([Logged(held, 0, None)]) == ["stale"]
    await watch.nothing_changed()


async def test_a_reaped_run_goes_on_with_its_log_on_its_node(queue: Queue) -> None:
    held = await logged(queue, b"one", b"two")
    assert await reap(queue) == "requeued"
    job = await queue.snapshot(JOB)
    assert (job.stage, job.stream, job.logged) == (Stage.RUN, queue.keys.stage(Stage.RUN, "n1", front=True), 2)
    assert await queue.store.log([Logged(held, 2, b"late")]) == ["stale"]
    [again] = await queue.worker("w2").take(Stage.RUN, "n1", front=True)
    assert await jobs.log(queue.store, JOB) == [b"one", b"two"]
    assert await queue.worker("w2").store.log([Logged(again, 2, b"three")]) == ["logged"]


async def test_its_sandbox_stays_the_one_that_init_made(queue: Queue) -> None:
    await logged(queue, b"one")
    [before] = await jobs.holders(queue.store, [JOB])
    assert await reap(queue) == "requeued"
    [after] = await jobs.holders(queue.store, [JOB])
    assert before is not None
    assert after is not None
    assert after.made == before.made != ""
    [held] = await queue.worker("w2").take(Stage.RUN, "n1", front=True)
    assert await queue.worker("w2").store.release([held]) == ["released"]
    [after] = await jobs.holders(queue.store, [JOB])
    assert after is not None
    assert after.made == before.made


async def test_a_turn_makes_good_for_the_workers_that_died_before_it(queue: Queue) -> None:
    limits = Limits(max_deaths=2)
    await logged(queue, b"t0")
    for number in range(1, MOST_DEATHS - 1):
        assert await reap(queue, limits) == "requeued"
        [held] = await queue.take(Stage.RUN, "n1", front=True)
        assert await queue.store.log([Logged(held, number, b"t on")]) == ["logged"]
    job = await queue.snapshot(JOB)
    assert (job.deaths, job.progress) == (MOST_DEATHS - 2, MOST_DEATHS - 2)
    assert await reap(queue, limits) == "requeued"
    await queue.take(Stage.RUN, "n1", front=True)
    assert await reap(queue, limits) == "ended", f"the job has had {MOST_DEATHS} deaths in all"


@pytest.mark.parametrize("between", [b"", b"w of a new sandbox", b"c of a checkpoint", b"p of a completion"])
async def test_deaths_without_a_turn_between_them_end_it_as_before(queue: Queue, between: bytes) -> None:
    """Each attempt that dies while it makes calls again has logged that its sandbox is a new one; others die within one
    completion, of which a part was logged.
    """
    limits = Limits(max_deaths=2)
    await logged(queue, b"t one")
    assert await reap(queue, limits) == "requeued"
    [held] = await queue.take(Stage.RUN, "n1", front=True)
    if between:
        assert await queue.store.log([Logged(held, 1, between)]) == ["logged"]
    assert await reap(queue, limits) == "ended"
    await nothing_left(queue)


@pytest.mark.parametrize("then", ["advance", "fail", "give up"])
async def test_what_a_turn_has_made_good_stays_so_without_its_log(queue: Queue, then: str) -> None:
    """Else the first worker that dies in EVAL ends a job that has had its deaths in RUN."""
    limits = Limits(max_deaths=2)
    await logged(queue, b"one")
    assert await reap(queue, limits) == "requeued"
    [held] = await queue.take(Stage.RUN, "n1", front=True)
    assert await queue.store.log([Logged(held, 1, b"t two")]) == ["logged"]
    if then == "advance":
        await queue.store.advance([Advance(held, None, b"c", "", 100)])
        await queue.take(Stage.EVAL)
    elif then == "fail":
        await queue.store.fail([Fail(held, Stage.INIT, 0, "it broke", forgets=True)])
        await queue.store.promote([(JOB, queue.keys.stage(Stage.INIT))])
        await queue.take(Stage.INIT)
    else:
        assert await queue.store.log([Logged(held, 0, None)]) == ["dropped"]
    assert await reap(queue, limits) == "requeued"


async def test_a_log_that_is_given_up_is_gone_and_the_job_begins_anew(queue: Queue) -> None:
    held = await logged(queue, b"one", b"two")
    assert await queue.store.log([Logged(held, 0, None)]) == ["dropped"]
    await nothing_left(queue)
    assert await reap(queue) == "requeued"
    assert (await queue.snapshot(JOB)).stage is Stage.INIT


async def test_nothing_of_it_is_left_behind_run(queue: Queue) -> None:
    held = await logged(queue, b"one", b"two")
    await queue.store.advance([Advance(held, None, b"c", "", 100)])
    await nothing_left(queue)


async def test_a_job_whose_node_or_sandbox_is_lost_keeps_it_through_init(queue: Queue) -> None:
    await queue.prepare("n2", "n3")
    held = await logged(queue, b"one", b"two")
    await queue.store.fail([Fail(held, Stage.INIT, 0, "it broke")])
    await queue.store.promote([(JOB, queue.keys.stage(Stage.INIT, front=True))])
    [init] = await queue.take(Stage.INIT, front=True)
    await queue.store.advance([Advance(init, "n2", b"c")])
    job = await queue.snapshot(JOB)
    item = Reap(JOB, job.token, job.entry, job.stream, Stage.INIT, POOL, unread=True, deaths=0)
    assert await queue.store.reap(Verb.EVACUATE, State.QUEUED, [item]) == ["requeued"]
    [init] = await queue.take(Stage.INIT, front=True)
    await queue.store.advance([Advance(init, "n3", b"c")])
    [again] = await queue.take(Stage.RUN, "n3", front=True)
    assert await jobs.log(queue.store, JOB) == [b"one", b"two"]
    assert await queue.store.log([Logged(again, 2, b"three")]) == ["logged"]


@pytest.mark.parametrize("end", ["fail", "finish", "confirm", "stop"])
async def test_nothing_of_it_is_left_where_the_job_ends_or_begins_anew(queue: Queue, end: str) -> None:
    held = await logged(queue, b"one", b"two")
    if end == "fail":
        await queue.store.fail([Fail(held, Stage.INIT, 1, "it broke", forgets=True)])
    elif end == "finish":
        await queue.finish(held)
    elif end == "confirm":
        await cancel(queue.store, "job", JOB)
        await queue.store.confirm(held, record(JOB, Outcome.CANCELLED))
    else:
        assert await reap(queue) == "requeued"
        await cancel(queue.store, "job", JOB)
    await nothing_left(queue)
