"""The entries of stage streams: each tells its reader enough to begin, and the end may be committed without a claim."""

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.duties.reap import decide
from prorl_mq.schema.items import Advance, Claim, Entry, Fail, Finish, Lane, Reap
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import jobs
from tests.support.queue import POOL, Queue, count_of, record, spec
from tests.support.watch import Watch
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio


async def entry_and_claim(queue: Queue, stage: Stage) -> tuple[Claim, Claim]:
    """What a job's entry tells, and what a claim of it then answers."""
    [entry] = await queue.read(stage)
    assert entry.claim is not None
    [claim] = await queue.claim(stage, [entry])
    assert claim.status == "claimed"
    return entry.claim, claim


def assert_alike(told: Claim, claimed: Claim) -> None:
    assert told == claimed._replace(status="read")


async def test_an_entry_tells_what_a_claim_answers_wherever_it_comes_from(queue: Queue) -> None:
    await queue.admitted()
    told, claimed = await entry_and_claim(queue, Stage.INIT)  # of admit
    assert_alike(told, claimed)
    assert (told.attempts, told.deaths, told.releases) == (0, 0, 0)
    await queue.store.release([await queue.held_now(JOB)])
    told, claimed = await entry_and_claim(queue, Stage.INIT)  # of release
    assert_alike(told, claimed)
    assert told.releases == 1
    await queue.store.advance([Advance(await queue.held_now(JOB), None, b"a\tcarry\n\x00")])
    told, claimed = await entry_and_claim(queue, Stage.RUN)  # of advance
    assert_alike(told, claimed)
    assert told.carry == b"a\tcarry\n\x00"
    held = await queue.held_now(JOB)
    blob = await queue.blob(held)
    await queue.store.advance([Advance(held, None, b"from run", blob, 10)])
    await queue.read(Stage.EVAL)
    state, item = decided(await queue.snapshot(JOB))
    assert await queue.store.reap(Verb.REAP, state, [item]) == ["requeued"]
    told, claimed = await entry_and_claim(queue, Stage.EVAL)  # of reap
    assert_alike(told, claimed)
    assert (told.deaths, told.trajectory, told.carry) == (1, blob, b"from run")
    await queue.fail(await queue.held_now(JOB), Stage.EVAL)
    await queue.backed_off(JOB)
    await queue.store.promote([(JOB, queue.keys.stage(Stage.EVAL))])
    await queue.store.divert(Lane(Stage.EVAL), await queue.read(Stage.EVAL), ["sums"])
    [entry] = await queue.read(Stage.EVAL, family="sums")  # of divert
    assert entry.claim is not None
    [claim] = await queue.claim(Stage.EVAL, [entry], family="sums")
    assert_alike(entry.claim, claim)
    assert (claim.attempts, claim.deaths, claim.releases) == (1, 1, 1)


def decided(job: jobs.Snapshot) -> tuple[State, Reap]:
    reaped = decide(job, spec(), leased=False)
    return reaped.to, reaped.item


@pytest.mark.parametrize(("size", "long"), [(2048, False), (2049, True)])
async def test_what_a_stage_carries_on_travels_in_the_entry_where_it_is_short(
    queue: Queue, size: int, long: bool
) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, None, b"\x07" * size)])
    [entry] = await queue.read(Stage.RUN)
    assert entry.claim is not None
    assert (entry.long, len(entry.claim.carry)) == (long, 0 if long else size)
    [claim] = await queue.claim(Stage.RUN, [entry])
    assert claim.carry == b"\x07" * size


@pytest.mark.parametrize("stage", list(Stage))
async def test_every_end_is_committed_without_a_claim_and_its_time_line_shows_the_read(
    queue: Queue, stage: Stage
) -> None:
    for place, how in enumerate(["finish", "fail", "release", "advance"]):
        if how == "advance" and stage is Stage.EVAL:
            continue
        [ref] = await queue.admitted(f"g{place}", batch=f"b{place}")
        [held] = await queue.begin(Stage.INIT)
        for after in list(Stage)[1 : 1 + list(Stage).index(stage)]:
            assert await queue.store.advance([Advance(held, None, b"c")]) == ["advanced"]
            [held] = await queue.begin(after)
        assert (held.ref, held.stage) == (ref, stage)
        job = await queue.snapshot(ref)
        assert (job.state, job.owner) == ("queued", "")
        match how:
            case "finish":
                answer = await queue.store.finish([Finish(held, Outcome.COMPLETED, record(ref))])
            case "fail":
                answer = await queue.store.fail([Fail(held, Stage.INIT, 60_000, "it broke")])
            case "release":
                answer = await queue.store.release([held])
            case _:
                answer = await queue.store.advance([Advance(held, None, b"c")])
        assert answer == [{"finish": "finished", "fail": "delayed", "release": "released", "advance": "advanced"}[how]]
        assert await queue.command("ZSCORE", queue.keys.leases, ref) is None
        if how == "release":
            await queue.store.finish([Finish((await queue.begin(stage))[0], Outcome.COMPLETED, record(ref))])


async def test_a_time_line_shows_when_the_job_was_read(queue: Queue) -> None:
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    await queue.store.advance([Advance(held._replace(read_at=monotonic() - 5), None, b"c")])
    line = await jobs.timeline(queue.store, JOB)
    events = [each.split("\t") for each in line.splitlines()]
    assert [each[1] for each in events] == ["admit", "claim", "advance"]
    assert 4_900 <= int(events[2][0]) - int(events[1][0]) <= 6_000
    assert events[1][2:5] == ["init", held.token, "w1"]


async def test_what_another_worker_has_leased_is_not_committed(queue: Queue, watch: Watch) -> None:
    """Both have the entry: a restart had lost the first one's read."""
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    other = queue.worker("w2")
    await queue.command("XCLAIM", queue.keys.stage(Stage.INIT), "workers", "w2", 0, held.entry)
    [claim] = await other.claim(Stage.INIT, [Entry(JOB, held.entry)])
    assert claim.status == "claimed"
    await watch.look()
    assert await queue.store.advance([Advance(held, None, b"c")]) == ["stale"]
    assert (await queue.store.assign(held))[0] == b"stale"
    await watch.nothing_changed()
    assert await other.store.advance([Advance(held, None, b"c")]) == ["advanced"]
    assert await queue.store.advance([Advance(held, None, b"c")]) == ["stale"], "`already` is for the other one alone"


async def test_an_older_entry_of_the_job_is_worth_nothing(queue: Queue) -> None:
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    assert await queue.store.release([held]) == ["released"]
    [again] = await queue.begin(Stage.INIT)
    assert count_of(again.token) > count_of(held.token)
    assert await queue.finish(held._replace(entry=again.entry)) == "already"
    assert await queue.finish(again) == "finished"


async def test_a_job_that_was_read_is_not_evacuated(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    await queue.begin(Stage.RUN, "n1")
    job = await queue.snapshot(JOB)
    item = Reap(JOB, job.token, job.entry, job.stream, Stage.INIT, POOL, unread=True, deaths=0)
    await watch.look()
    assert await queue.store.reap(Verb.EVACUATE, State.QUEUED, [item]) == ["held"]
    await watch.nothing_changed()


ODD = ["", "a\tb", "T\tx\t0\t0\t0\t\t0\t", "T\t0\t0\t0\t0\t\t0", "\xff"]


@pytest.mark.parametrize("facts", [(), *(("f", each) for each in ODD)])
async def test_an_entry_that_tells_nothing_readable_tells_its_job_alone(queue: Queue, facts: tuple[str, ...]) -> None:
    """As an older release writes it, or anybody's hand: its job is claimed, or the entry removed."""
    await queue.command("XADD", queue.keys.stage(Stage.INIT), "*", "j", JOB, *facts)
    [entry] = await queue.read(Stage.INIT)
    assert (entry.ref, entry.claim, entry.long) == (JOB, None, False)
    assert [claim.status for claim in await queue.claim(Stage.INIT, [entry])] == ["gone"]
    assert await queue.command("XLEN", queue.keys.stage(Stage.INIT)) == 0
