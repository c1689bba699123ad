"""The verbs of the store with their scripts, and what is read back, on a Redis in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from prorl_mq.errors import ProrlError
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Advance, Fail, Finish, Held, Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import GroupRecord, Outcome, Stage
from prorl_mq.store import jobs, results, runs, workers
from prorl_mq.store.store import Store
from tests.support.fake_redis import fake_queue
from tests.support.queue import POOL, RUN, Queue, count_of, record
from tests.verbs.places import GROUP, JOB

pytestmark = pytest.mark.anyio

Commit = Callable[[Store, Held], Awaitable[list[str]]]
COMMITS: dict[str, Commit] = {
    "advanced": lambda store, held: store.advance([Advance(held, None, b"carry")]),
    "finished": lambda store, held: store.finish([Finish(held, Outcome.COMPLETED, record(held.ref))]),
    "released": lambda store, held: store.release([held]),
    "delayed": lambda store, held: store.fail([Fail(held, Stage.INIT, 60_000, "it broke")]),
}
commits = pytest.mark.parametrize(("done", "commit"), COMMITS.items(), ids=COMMITS)


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    made = await fake_queue()
    yield made
    await made.redis.aclose()


async def state(queue: Queue) -> tuple[str, Stage, str]:
    job = await queue.snapshot(JOB)
    return job.state, job.stage, job.owner


async def test_a_job_passes_through_its_stages_to_a_result(queue: Queue) -> None:
    held = await queue.hold(Stage.EVAL)
    assert await queue.finish(held, reward=0.5) == "finished"
    [cursor] = await queue.settle()
    [result] = await queue.results()
    assert result.cursor == cursor
    [sample] = decode(result.record, GroupRecord).samples
    assert (sample.job_id, sample.outcome, sample.reward) == ("r:g:0", Outcome.COMPLETED, 0.5)


async def test_an_acknowledged_result_is_gone(queue: Queue) -> None:
    await queue.finish(await queue.hold(Stage.EVAL))
    await queue.settle()
    assert await queue.ack_all() == 1
    assert await queue.results() == []
    assert await queue.ack_all() == 0


async def test_a_group_is_stored_once(queue: Queue) -> None:
    batch, group = queue.new()
    assert await queue.store.submit(batch, [group]) == ["stored"]
    assert await queue.store.submit(batch, [group]) == ["already"]


async def test_a_batch_with_another_body_is_refused(queue: Queue) -> None:
    batch, group = queue.new()
    await queue.store.submit(batch, [group])
    assert await queue.store.submit(batch._replace(digest="another"), [group]) == ["conflict"]


async def test_admission_makes_the_jobs_of_a_group_and_does_so_once(queue: Queue) -> None:
    ref = await queue.submit(n=3)
    wanted = await queue.wanted(ref)
    assert await queue.store.admit(RUN, [wanted]) == [3]
    assert await queue.store.admit(RUN, [wanted]) == [-1]
    found = await jobs.read(queue.store, [JobRef(f"{ref}:{index}") for index in range(4)])
    assert [job.state if job else None for job in found] == ["queued", "queued", "queued", None]


async def test_a_claim_leases_a_job_to_one_worker(queue: Queue) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    [claim] = await queue.claim(Stage.INIT, entries)
    [again] = await queue.claim(Stage.INIT, entries)
    [other] = await queue.worker("w2").claim(Stage.INIT, entries)
    assert (claim.status, again.status, other.granted) == ("claimed", "already", False)
    assert claim.token == again.token
    assert await state(queue) == ("leased", Stage.INIT, "w1")


async def test_the_next_claim_has_a_greater_token(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.store.release([held])
    [again] = await queue.take(Stage.INIT)
    assert count_of(again.token) > count_of(held.token)


async def test_a_commit_takes_the_job_from_its_worker(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    assert await queue.store.advance([Advance(held, "n1", b"carry")]) == ["advanced"]
    job = await queue.snapshot(JOB)
    assert (job.state, job.stage, job.owner) == ("queued", Stage.RUN, "")
    assert job.stream == queue.keys.stage(Stage.RUN, "n1")


@commits
async def test_a_commit_is_done_once(queue: Queue, done: str, commit: Commit) -> None:
    held = await queue.hold(Stage.INIT)
    assert await commit(queue.store, held) == [done]
    assert await commit(queue.store, held) == ["already"]
    assert await commit(queue.worker("w2").store, held) == ["stale"]


@commits
async def test_a_commit_without_the_jobs_token_and_entry_changes_nothing(
    queue: Queue, done: str, commit: Commit
) -> None:
    held = await queue.hold(Stage.INIT)
    before = await queue.snapshot(JOB)
    for stale in (held._replace(token=Token("99")), held._replace(entry=EntryId("1-1"))):
        assert await commit(queue.store, stale) == ["stale"]
    assert await commit(queue.store, held._replace(ref=JobRef("acme:r:missing:0"))) == ["gone"]
    assert await queue.snapshot(JOB) == before
    assert await commit(queue.store, held) == [done]


@commits
async def test_a_job_that_was_told_to_stop_commits_nothing(queue: Queue, done: str, commit: Commit) -> None:
    held = await queue.hold(Stage.INIT)
    stop = Stop(JOB, record(JOB, Outcome.CANCELLED), queue.keys.stage(Stage.INIT))
    assert await queue.store.stop(Verb.CANCEL, [stop]) == ["stopping"]
    assert await commit(queue.store, held) == ["stopping"], done
    assert await queue.store.confirm(held, record(JOB, Outcome.CANCELLED)) == "confirmed"
    assert (await queue.snapshot(JOB)).outcome == "cancelled"


async def test_a_queued_job_is_stopped_at_once(queue: Queue) -> None:
    await queue.admitted()
    stop = Stop(JOB, record(JOB, Outcome.CANCELLED), queue.keys.stage(Stage.INIT))
    assert await queue.store.stop(Verb.CANCEL, [stop]) == ["ended"]
    assert await queue.read(Stage.INIT) == []


async def test_a_withdrawn_group_gets_no_jobs(queue: Queue) -> None:
    ref = await queue.submit(n=2)
    wanted = await queue.wanted(ref)
    assert await queue.withdraw(GROUP, why=Withdrawal.CANCEL) == [0]
    assert await queue.store.admit(RUN, [wanted]) == [-1]


async def test_a_backend_is_reserved_and_given_back_with_the_job(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    assert await queue.load() == 1
    await queue.store.release([held])
    assert await queue.load() == 0


async def test_the_least_busy_backend_is_reserved(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    await queue.store.join(POOL, "http://b2", b"about it")
    [_] = await queue.admitted("h", batch="c")
    await queue.store.advance([Advance(each, None, b"") for each in await queue.take(Stage.INIT)])
    [held] = await queue.take(Stage.RUN)
    assert await queue.store.assign(held) == [b"assigned", b"http://b2", b"about it"]


async def test_results_are_read_from_a_cursor_on(queue: Queue) -> None:
    for name in ("a", "b"):
        [ref] = await queue.admitted(name, batch=name)
        [held] = await queue.take(Stage.INIT)
        assert held.ref == ref
        await queue.finish(held)
        await queue.settle()
    first, second = await queue.results()
    assert await results.collect(queue.store, RUN, after=first.cursor) == [second]


async def test_a_cursor_of_another_form_is_refused(queue: Queue) -> None:
    with pytest.raises(ProrlError, match="cursor"):
        await results.collect(queue.store, RUN, after="yesterday")


async def test_samples_in_flight_are_counted_by_run(queue: Queue) -> None:
    await queue.submit("g", n=2)
    await queue.admitted("h", batch="c", n=3)
    assert (await runs.usage(queue.store, [RUN])).jobs == {RUN: 3}


async def test_a_run_is_known_from_its_first_batch_on(queue: Queue) -> None:
    assert await runs.known(queue.store) == []
    await queue.submit()
    assert await runs.known(queue.store) == [RUN]


async def test_no_worker_lives_without_a_heartbeat(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.worker("w1"), "stage", "run")
    assert await workers.living(queue.store) == []
