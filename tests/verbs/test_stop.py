"""stop: the verbs cancel and expire. What waits ends now; what runs is told to stop."""

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Advance, Finish, Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage
from tests.support.queue import Queue, record
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB, G, J

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize(("verb", "outcome"), [(Verb.CANCEL, Outcome.CANCELLED), (Verb.EXPIRE, Outcome.EXPIRED)])


async def stop(queue: Queue, verb: Verb, ref: JobRef = JOB, *, deadline: bool = False) -> str:
    outcome = Outcome.CANCELLED if verb is Verb.CANCEL else Outcome.EXPIRED
    stream = (await queue.snapshot(ref)).stream
    [answer] = await queue.store.stop(verb, [Stop(ref, record(ref, outcome), stream, deadline=deadline)])
    return answer


@BOTH
async def test_a_queued_job_ends_at_once(queue: Queue, watch: Watch, verb: Verb, outcome: Outcome) -> None:
    await queue.admitted()
    await watch.look()
    assert await stop(queue, verb) == "ended"
    assert await watch.changes() == {
        f"+ {G} s:0": "<packed>",
        f"+ {G} t:0": f"admit init submitted_ms=; {outcome} init T1 w1; ",
        f"+ {J} carry": "",
        f"+ {J} commits": "",
        f"+ {J} outcome": outcome,
        f"+ {J} owner": "",
        "+ due#1": f"g={GROUP}",
        f"- deadlines {JOB}": "<ms>",
        "+ counters": "hash",
        f"+ counters jobs:{outcome}": "1",
        "- in_flight": "hash",
        "- in_flight acme:r": "1",
        "- stage:init#1": f"j={JOB}",
        f"{G} open": "1 → 0",
        f"{J} entry": "emptied",
        f"{J} line": "emptied",
        f"{J} state": "queued → done",
    }
    packed = await queue.command("HGET", queue.keys.group(GROUP), "s:0")
    assert decode(packed, SampleRecord).outcome is outcome


@BOTH
async def test_a_job_that_was_read_and_not_claimed_has_begun_and_its_reader_is_told(
    queue: Queue, watch: Watch, verb: Verb, outcome: Outcome
) -> None:
    await queue.admitted()
    [held] = await queue.worker("w2").begin(Stage.INIT)
    await watch.look()
    assert await stop(queue, verb) == "stopping"
    deadline = {f"- deadlines {JOB}": "<ms>"} if verb is Verb.EXPIRE else {}
    assert await watch.changes() == {
        f"+ {J} ending": outcome,
        f"+ {J} owner": "w2",
        f"+ {J} told": "<ms>",
        f"+ {J} until": "<ms>",
        f"+ leases {JOB}": "<ms>",
        "+ cancels#1": f"c={JOB} T1 {outcome} w2",
        f"{J} line": f"… claim init T1 w2; {verb} init T1 w1;",
        f"{J} state": "queued → stopping",
        **deadline,
    }
    reader = queue.worker("w2").store
    assert await reader.finish([Finish(held, Outcome.COMPLETED, record(JOB))]) == ["stopping"]
    assert await queue.store.confirm(held, record(JOB, outcome)) == "stale", "it is not this worker's to confirm"
    assert await reader.confirm(held, record(JOB, outcome)) == "confirmed"


@BOTH
async def test_a_delayed_job_ends_at_once(queue: Queue, watch: Watch, verb: Verb, outcome: Outcome) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.fail(held)
    await watch.look()
    assert await stop(queue, verb) == "ended"
    changed = await watch.changes()
    assert changed[f"{J} state"] == "delayed → done"
    assert changed[f"- delayed {JOB}"] == changed[f"- deadlines {JOB}"] == "<ms>"
    assert changed["+ due#1"] == f"g={GROUP}"


async def test_a_job_that_waits_for_eval_gives_its_bytes_back(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    await queue.store.advance([Advance(held, None, b"c", "", 100)])
    assert await queue.command("GET", queue.keys.eval_bytes) == b"100"
    assert await stop(queue, Verb.CANCEL) == "ended"
    assert await queue.command("GET", queue.keys.eval_bytes) == b"0"


@BOTH
async def test_a_leased_job_is_told_to_stop(queue: Queue, watch: Watch, verb: Verb, outcome: Outcome) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await stop(queue, verb) == "stopping"
    deadline = {f"- deadlines {JOB}": "<ms>"} if verb is Verb.EXPIRE else {}
    assert await watch.changes() == {
        f"+ {J} ending": outcome,
        f"+ {J} told": "<ms>",
        "+ cancels#1": f"c={JOB} T2 {outcome} w1",
        f"{J} line": f"… {verb} run T2 w1;",
        f"{J} state": "leased → stopping",
        **deadline,
    }
    assert await queue.load() == 1, "the reservation stays until what runs is dead"
    assert (await queue.snapshot(JOB)).token == held.token


@BOTH
@pytest.mark.parametrize("leased", [True, False])
async def test_a_repeat_is_answered_already_and_changes_nothing(
    queue: Queue, watch: Watch, verb: Verb, outcome: Outcome, leased: bool
) -> None:
    await (queue.hold(Stage.INIT) if leased else queue.admitted())
    await stop(queue, verb)
    await watch.look()
    assert await stop(queue, verb) == "already"
    await watch.nothing_changed()


async def test_a_job_is_not_expired_before_its_time(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await watch.look()
    assert await stop(queue, Verb.EXPIRE, deadline=True) == "moved"
    await watch.nothing_changed()
    await queue.past_deadline(JOB)
    assert await stop(queue, Verb.EXPIRE, deadline=True) == "ended"


async def test_a_job_that_is_on_another_stream_by_now_is_left_alone(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await watch.look()
    elsewhere = Stop(JOB, record(JOB, Outcome.CANCELLED), queue.keys.stage(Stage.EVAL))
    assert await queue.store.stop(Verb.CANCEL, [elsewhere]) == ["moved"]
    await watch.nothing_changed()


async def test_a_job_that_is_gone_leaves_no_timer_behind(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.command("ZADD", queue.keys.deadlines, 1, JOB)
    await queue.command("ZADD", queue.keys.delayed, 1, JOB)
    gone = Stop(JOB, b"", queue.keys.stage(Stage.INIT))
    assert await queue.store.stop(Verb.EXPIRE, [gone]) == ["gone"]
    await watch.nothing_changed()


async def test_an_expiry_meets_a_cancel_and_the_first_one_stands(queue: Queue) -> None:
    await queue.hold(Stage.INIT)
    assert await stop(queue, Verb.CANCEL) == "stopping"
    assert await stop(queue, Verb.EXPIRE) == "already"
    assert (await queue.snapshot(JOB)).ending == "cancelled"
    assert await queue.command("EXISTS", queue.keys.deadlines) == 0, "a deadline that was heard is not due again"
