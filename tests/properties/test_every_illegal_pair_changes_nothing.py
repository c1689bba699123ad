"""What the transition table does not name does not happen: refused, and not one key changes."""

from collections.abc import Awaitable, Callable

import pytest

from prorl_mq.schema.items import Advance, Entry, Fail, Finish, Held, Logged, Pause, Reap, Resume, Stop, Wanted
from prorl_mq.schema.lifecycle import TABLE, State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.status import PauseEnd
from prorl_mq.store.store import renewal
from tests.support.queue import POOL, RUN, Queue, lease_of, record
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB

pytestmark = pytest.mark.anyio


async def reaped(queue: Queue) -> None:
    """Queued under a token that nothing has committed: the one that looks most like a holder's."""
    held = await queue.hold(Stage.RUN)
    await queue.overdue(JOB)
    item = Reap(JOB, held.token, held.entry, queue.keys.stage(Stage.RUN), Stage.INIT, POOL)
    assert await queue.store.reap(Verb.REAP, State.QUEUED, [item]) == ["requeued"]


async def queued_and_read(queue: Queue) -> None:
    await reaped(queue)
    assert await queue.worker("w2").read(Stage.INIT)


async def leased(queue: Queue) -> None:
    await queue.hold(Stage.RUN)


async def delayed(queue: Queue) -> None:
    await queue.fail(await queue.hold(Stage.RUN))
    await queue.backed_off(JOB)


async def paused(queue: Queue) -> None:
    await delayed(queue)
    job = await queue.snapshot(JOB)
    assert await queue.store.pause([Pause(JOB, job.stream)], for_ms=60_000, ends=PauseEnd.RESUME) == ["parked"]


async def marked(queue: Queue) -> None:
    job = await queue.snapshot(JOB)
    assert await queue.store.pause([Pause(JOB, job.stream)], for_ms=60_000, ends=PauseEnd.RESUME) == ["pausing"]


async def stopping(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    await queue.store.stop(Verb.CANCEL, [Stop(JOB, b"", queue.keys.stage(Stage.RUN))])


async def finished(queue: Queue) -> None:
    await queue.finish(await queue.hold(Stage.EVAL))


async def cancelled_in_the_queue(queue: Queue) -> None:
    await reaped(queue)
    await queue.store.stop(Verb.CANCEL, [Stop(JOB, record(JOB), queue.keys.stage(Stage.INIT))])


async def settled(queue: Queue) -> None:
    await finished(queue)
    await queue.settle()


WAYS: dict[str, tuple[State, Callable[[Queue], Awaitable[None]]]] = {
    "queued": (State.QUEUED, reaped),
    "queued and read": (State.QUEUED, queued_and_read),
    "leased": (State.LEASED, leased),
    "delayed": (State.DELAYED, delayed),
    "paused": (State.PAUSED, paused),
    "stopping": (State.STOPPING, stopping),
    "finished": (State.DONE, finished),
    "cancelled in the queue": (State.DONE, cancelled_in_the_queue),
    "settled": (State.DONE, settled),
}


async def call(queue: Queue, verb: Verb, held: Held) -> list[str]:
    """The verb with what the job itself says of its token, entry and stream."""
    store, job = queue.store, await queue.snapshot(JOB)
    stop = Stop(JOB, record(JOB, Outcome.CANCELLED), job.stream)
    take = Reap(JOB, job.token, job.entry, job.stream, Stage.INIT, POOL, "infra_error", record(JOB))
    match verb:
        case Verb.ADMIT:
            return [str(made) for made in await store.admit(RUN, [Wanted(GROUP, 0, 1, 1_000)])]
        case Verb.CLAIM:
            claims = await queue.worker("w2").claim(held.stage, [Entry(JOB, held.entry)], held.node)
            return [claim.status for claim in claims]
        case Verb.DIVERT:
            return await store.divert(held.lane, [Entry(JOB, held.entry)], ["sums"])
        case Verb.RENEW:
            made = renewal(queue.keys, "w1", {"stage": "run"}, [lease_of(held)], lease_ms=90_000)
            return [each.decode() for each in await queue.store.call("renew", made.keys, made.arguments)]
        case Verb.ADVANCE:
            return await store.advance([Advance(held, None, b"c", "", 100)])
        case Verb.RELEASE:
            return await store.release([held])
        case Verb.FINISH:
            return await store.finish([Finish(held, Outcome.COMPLETED, record(JOB))])
        case Verb.FAIL:
            return await store.fail([Fail(held, Stage.INIT, 1, "it broke")])
        case Verb.CONFIRM:
            return [await store.confirm(held, record(JOB, Outcome.CANCELLED))]
        case Verb.ASSIGN:
            return [each.decode() for each in await store.assign(held, exclude=["http://b1"])][:1]
        case Verb.LOG:
            return await store.log([Logged(held, 0, b"said")])
        case Verb.CANCEL | Verb.EXPIRE:
            return await store.stop(verb, [stop])
        case Verb.REAP:
            ended = await store.reap(Verb.REAP, State.DONE, [take])
            return [*ended, *await store.reap(Verb.REAP, State.QUEUED, [take])]
        case Verb.EVACUATE:
            return await store.reap(Verb.EVACUATE, State.QUEUED, [take._replace(unread=True)])
        case Verb.PROMOTE:
            return await store.promote([(JOB, job.stream)])
        case Verb.PAUSE:
            return await store.pause([Pause(JOB, job.stream)], for_ms=60_000, ends=PauseEnd.EXPIRE)
        case Verb.RESUME:
            return await store.resume([Resume(JOB, job.token, job.stage)])


ON_WHAT_WAS_READ = frozenset({
    Verb.CLAIM, Verb.ADVANCE, Verb.RELEASE, Verb.FINISH, Verb.FAIL, Verb.REAP, Verb.RESUME,
})  # fmt: skip
ILLEGAL = [(way, verb) for way, (state, _) in WAYS.items() for verb in Verb if (state, verb) not in TABLE]
# What a verb does says so in the past tense; nothing of that may be answered here.
REFUSALS = frozenset({"-1", "already", "gone", "lost", "stale", *State})


@pytest.mark.parametrize(("way", "verb"), ILLEGAL, ids=str)
async def test_it_is_refused_and_nothing_changes(queue: Queue, way: str, verb: Verb) -> None:
    state, drive = WAYS[way]
    await queue.store.join(POOL, "http://b2", b"about it")
    await drive(queue)
    assert (await queue.snapshot(JOB)).state == state
    held = await queue.held_now(JOB)
    watch = Watch(queue.redis, queue.keys)
    beside: tuple[str, ...] = ("workers", "worker:")  # a heartbeat is also about its worker
    if verb is Verb.EXPIRE:
        beside = (*beside, "deadlines")  # a timer that has nothing to do any more is removed
    before = (await watch.now()).without(*beside)
    answers = await call(queue, verb, held)
    assert set(answers) <= REFUSALS
    assert (await watch.now()).without(*beside) == before


@pytest.mark.parametrize(("state", "verb"), TABLE, ids=str)
async def test_the_calls_that_are_refused_there_are_accepted_where_the_table_names_them(
    queue: Queue, state: State, verb: Verb
) -> None:
    """Else the test above would prove nothing: a call that is always refused changes nothing either."""
    await queue.store.join(POOL, "http://b2", b"about it")
    _, drive = WAYS["queued and read" if state is State.QUEUED and verb in ON_WHAT_WAS_READ else state.value]
    await drive(queue)
    if verb is Verb.RESUME and state is not State.PAUSED:
        await marked(queue)
    if verb is Verb.EXPIRE and state is State.PAUSED:
        await queue.command("HSET", queue.keys.job(JOB), "pause", 1)
    if verb is Verb.REAP and state is not State.QUEUED:
        await queue.overdue(JOB)
    watch = Watch(queue.redis, queue.keys)
    before = await watch.now()
    answers = await call(queue, verb, await queue.held_now(JOB))
    assert answers[0] not in {"already", "gone", "lost", "stale", "-1"}
    assert await watch.now() != before
