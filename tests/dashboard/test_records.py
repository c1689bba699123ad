"""Every record is read back with rq's own classes, and stands in exactly one list."""

import pytest

from prorl_mq.dashboard import rq_format
from prorl_mq.dashboard.projector import Projector
from prorl_mq.schema.ids import JobRef, public
from prorl_mq.schema.items import Advance, Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import ErrorInfo, Outcome, Stage
from prorl_mq.store.jobs import ended
from prorl_mq.store.store import renewal
from tests.dashboard.conftest import Reader
from tests.support.queue import RUN, Queue, record

pytestmark = pytest.mark.anyio


async def shown(projector: Projector, cursor: str | None = None) -> str:
    """Brings the mirror up to now."""
    cursor = cursor or await projector.resume()
    while (after := await projector.step(cursor)) != cursor:
        cursor = after
    return cursor


async def test_a_job_is_shown_in_each_stage_that_it_has_come_to(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    """Queued, started and finished, with the times at which it was so."""
    cursor = await projector.resume()
    [ref] = await queue.admitted()
    cursor = await shown(projector, cursor)
    job = reader.job(ref, Stage.INIT)
    assert (job.get_status(), reader.places(ref, Stage.INIT)) == ("queued", ["queued"])
    assert job.description == "task (sums), sample 0, run r of acme"
    assert (job.func_name, job.args, job.origin) == ("init", ["r:g:0"], "init")
    assert job.started_at is None
    assert job.enqueued_at == job.created_at
    [held] = await queue.take(Stage.INIT)
    cursor = await shown(projector, cursor)
    job = reader.job(ref, Stage.INIT)
    assert (job.get_status(), job.worker_name, reader.places(ref, Stage.INIT)) == ("started", "w1", ["started"])
    assert job.started_at is not None
    assert job.enqueued_at is not None
    assert job.started_at >= job.enqueued_at
    await queue.store.advance([Advance(held, None, b"")])
    cursor = await shown(projector, cursor)
    job = reader.job(ref, Stage.INIT)
    assert (job.get_status(), reader.places(ref, Stage.INIT)) == ("finished", ["finished"])
    assert job.ended_at is not None
    assert job.started_at is not None
    assert job.ended_at >= job.started_at
    assert reader.places(ref, Stage.RUN) == ["queued"]


async def test_the_end_of_a_job_shows_outcome_and_reward(queue: Queue, projector: Projector, reader: Reader) -> None:
    held = await queue.hold(Stage.EVAL)
    await queue.finish(held, turns=3)
    await shown(projector)
    job = reader.job(held.ref, Stage.EVAL)
    assert [reader.places(held.ref, stage) for stage in Stage] == [["finished"]] * 3
    assert job.return_value() == {
        "outcome": "completed", "reward": 1.0, "attempt": 0, "turns": 3, "tool_calls": 0, "response_tokens": 0,
    }  # fmt: skip
    assert job.meta == {"outcome": "completed"}


async def test_a_failure_shows_the_handlers_traceback(queue: Queue, projector: Projector, reader: Reader) -> None:
    held = await queue.hold(Stage.EVAL)
    error = ErrorInfo(type="ValueError", message="no", stage="eval", traceback="Traceback: line 3\nValueError: no")
    await queue.finish(held, Outcome.INFRA_ERROR, error=error)
    await shown(projector)
    job = reader.job(held.ref, Stage.EVAL)
    latest = job.latest_result()
    assert reader.places(held.ref, Stage.EVAL) == ["failed"]
    assert latest is not None
    assert latest.exc_string == "infra_error\nTraceback: line 3\nValueError: no"


async def test_what_was_published_before_it_was_seen_is_read_from_the_record(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    """A group may be settled before the projector comes to it."""
    held = await queue.hold(Stage.EVAL)
    await queue.finish(held, turns=3)
    await queue.settle()
    await shown(projector)
    job = reader.job(held.ref, Stage.EVAL)
    assert job.return_value()["turns"] == 3
    assert job.description == "task (sums), sample 0, run r of acme"


async def test_a_failed_attempt_waits_as_scheduled_and_goes_on(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    """RUN failed, so its record says so, and INIT comes again."""
    held = await queue.hold(Stage.RUN)
    await queue.fail(held)
    cursor = await shown(projector)
    assert (reader.places(held.ref, Stage.RUN), reader.places(held.ref, Stage.INIT)) == (["failed"], ["scheduled"])
    latest = reader.job(held.ref, Stage.RUN).latest_result()
    assert latest is not None
    assert latest.exc_string == "it broke"
    await queue.backed_off(held.ref)
    snapshot = await queue.snapshot(held.ref)
    await queue.store.promote([(held.ref, snapshot.stream)])
    cursor = await shown(projector, cursor)
    assert reader.places(held.ref, Stage.INIT) == ["queued"]
    await queue.take(Stage.INIT)
    await shown(projector, cursor)
    assert reader.places(held.ref, Stage.INIT) == ["started"]


async def test_a_cancelled_job_is_in_the_canceled_registry(queue: Queue, projector: Projector, reader: Reader) -> None:
    [ref] = await queue.admitted()
    snapshot = await queue.snapshot(ref)
    stop = Stop(ref, ended(snapshot, Outcome.CANCELLED), snapshot.stream)
    assert await queue.store.stop(Verb.CANCEL, [stop]) == ["ended"]
    await shown(projector)
    assert (reader.job(ref, Stage.INIT).get_status(), reader.places(ref, Stage.INIT)) == ("canceled", ["canceled"])


async def test_a_job_that_is_told_to_stop_is_still_its_workers(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    """Cancelled means stopped: until then it runs."""
    held = await queue.hold(Stage.RUN)
    snapshot = await queue.snapshot(held.ref)
    await queue.store.stop(Verb.CANCEL, [Stop(held.ref, ended(snapshot, Outcome.CANCELLED), snapshot.stream)])
    cursor = await shown(projector)
    assert reader.places(held.ref, Stage.RUN) == ["started"]
    await queue.store.confirm(held, record(held.ref, Outcome.CANCELLED))
    await shown(projector, cursor)
    assert reader.places(held.ref, Stage.RUN) == ["canceled"]


async def test_a_released_job_is_queued_again_without_its_worker(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    held = await queue.hold(Stage.INIT)
    cursor = await shown(projector)
    await queue.store.release([held])
    await shown(projector, cursor)
    job = reader.job(held.ref, Stage.INIT)
    assert (job.get_status(), job.worker_name, job.started_at) == ("queued", None, None)
    assert reader.places(held.ref, Stage.INIT) == ["queued"]


async def test_workers_are_shown_with_node_state_and_current_job(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    """By name; a worker that has left goes."""
    about = {"stage": "init", "node": "n7", "slots": 4, "busy": 1, "pid": 42, "started_ms": 1_700_000_000_000}
    beat = renewal(queue.keys, "w1", about, [], lease_ms=60_000)
    await queue.store.call("renew", beat.keys, beat.arguments)
    held = await queue.hold(Stage.INIT)
    cursor = await shown(projector)
    worker = reader.worker("w1")
    assert (worker.hostname, worker.pid, worker.get_state(), worker.queue_names()) == ("n7", 42, "busy", ["init"])
    current = worker.get_current_job()
    assert current is not None
    assert current.args == [public(held.ref)]
    await queue.store.advance([Advance(held, None, b"")])
    projector._workers_due = 0.0
    cursor = await shown(projector, cursor)
    assert reader.worker("w1").get_current_job() is None
    assert reader.worker("w1").successful_job_count == 1
    await queue.command("ZREM", queue.keys.workers, "w1")
    projector._workers_due = 0.0
    await projector.step(cursor)
    assert reader.redis.smembers("rq:workers") == set()


@pytest.mark.parametrize("name", ["a", "a.b_c-d", "__", "_._", "-run", "x--1"])
@pytest.mark.parametrize("stage", Stage)
def test_an_id_of_a_record_names_one_job(name: str, stage: Stage) -> None:
    """Buttons act on what the id says."""
    ref = JobRef(f"{RUN}:{name}:3")
    made = rq_format.record_id(ref, stage)
    assert rq_format.job_of(made) == (ref, stage)
    assert made.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    "name", ["", "x", "acme__r__g__0", "acme__r__g__zero-run", "acme__r__g__0-walk", "a:b:c:0-run"]
)
def test_an_id_that_is_not_ours_names_none(name: str) -> None:
    with pytest.raises(ValueError):
        rq_format.job_of(name)
