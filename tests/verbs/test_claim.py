"""claim: a lease for each entry that its reader still has, and that its job still stands behind."""

import pytest

from prorl_mq.duties.reap import decide
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Advance, Entry, Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Stage
from tests.support.queue import BUDGET_MS, LEASE_MS, Queue, record, spec
from tests.support.watch import Watch
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio


async def test_a_claim_gives_a_lease(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    await watch.look()
    [claim] = await queue.claim(Stage.INIT, entries)
    assert (claim.status, claim.attempts, claim.deaths, claim.releases) == ("claimed", 0, 0, 0)
    assert await watch.changes() == {
        f"+ {J} claimed": "<ms>",
        f"+ {J} owner": "w1",
        f"+ {J} until": "<ms>",
        f"+ leases {JOB}": "<ms>",
        f"{J} line": "… claim init T1 w1;",
        f"{J} state": "queued → leased",
    }


async def test_a_repeat_is_answered_with_the_same_token_and_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    [first] = await queue.claim(Stage.INIT, entries)
    await watch.look()
    [second] = await queue.claim(Stage.INIT, entries)
    assert second == first._replace(status="already")
    await watch.nothing_changed()


async def test_the_lease_never_lasts_longer_than_the_stages_budget(queue: Queue) -> None:
    await queue.admitted(n=2)
    entries = await queue.read(Stage.INIT)
    earliest = await queue.store.now_ms()
    await queue.store.claim(Stage.INIT, None, entries, [1_000, BUDGET_MS], LEASE_MS)
    latest = await queue.store.now_ms()
    for entry, lease_ms, budget_ms in zip(entries, (1_000, LEASE_MS), (1_000, BUDGET_MS), strict=True):
        lease = int(await queue.command("ZSCORE", queue.keys.leases, entry.ref))
        assert earliest + lease_ms <= lease <= latest + lease_ms
        assert earliest + budget_ms <= (await queue.snapshot(entry.ref)).until_ms <= latest + budget_ms


async def test_an_entry_that_another_worker_has_claimed_is_refused(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    await queue.claim(Stage.INIT, entries)
    await watch.look()
    [claim] = await queue.worker("w2").claim(Stage.INIT, entries)
    assert claim.status == "stale"
    await watch.nothing_changed()


async def test_an_entry_that_was_reaped_before_its_claim_is_refused(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    state, item = decide(await queue.snapshot(JOB), spec(), leased=False)
    assert await queue.store.reap(Verb.REAP, state, [item]) == ["requeued"]
    await watch.look()
    [claim] = await queue.claim(Stage.INIT, entries)
    assert claim.status == "stale"
    await watch.nothing_changed()


async def test_an_entry_without_a_job_is_removed(queue: Queue, watch: Watch) -> None:
    await watch.look()
    entry = await queue.command("XADD", queue.keys.stage(Stage.INIT), "*", "j", JOB)
    [read] = await queue.read(Stage.INIT)
    assert read == Entry(JOB, EntryId(entry.decode()))
    assert [claim.status for claim in await queue.claim(Stage.INIT, [read])] == ["gone"]
    assert await watch.changes() == {"+ stage:init consumer w1": "known"}


async def test_a_second_entry_of_a_job_is_removed_and_the_job_goes_on_behind_the_first(
    queue: Queue, watch: Watch
) -> None:
    await queue.admitted()
    await queue.command("XADD", queue.keys.stage(Stage.INIT), "*", "j", JOB)
    entries = await queue.read(Stage.INIT)
    assert [claim.status for claim in await queue.claim(Stage.INIT, entries)] == ["claimed", "stale"]
    await watch.look()
    assert await queue.finish(await queue.held_now(JOB)) == "finished"
    assert await queue.command("XLEN", queue.keys.stage(Stage.INIT)) == 0


async def test_a_job_past_its_deadline_is_not_claimed_and_stays_for_expire(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    await queue.past_deadline(JOB)
    await watch.look()
    assert [claim.status for claim in await queue.claim(Stage.INIT, entries)] == ["expired"]
    await watch.nothing_changed()
    job = await queue.snapshot(JOB)
    assert await queue.store.stop(Verb.EXPIRE, [Stop(JOB, record(JOB), job.stream, deadline=True)]) == ["stopping"]
    assert [claim.status for claim in await queue.claim(Stage.INIT, entries)] == ["already"]


async def test_the_next_stage_gets_what_the_last_one_carried(queue: Queue) -> None:
    await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(await queue.held_now(JOB), None, b"\x00carry")])
    [claim] = await queue.claim(Stage.RUN, await queue.read(Stage.RUN))
    assert claim.carry == b"\x00carry"


async def test_a_token_is_never_given_twice_in_an_epoch(queue: Queue) -> None:
    """Not even to a job that goes back to the entry's stage, or to its hash's old name."""
    first = await queue.hold(Stage.INIT)
    await queue.store.release([first])
    [again] = await queue.take(Stage.INIT)
    assert again.token != first.token
    assert first.token.partition(".")[0] == again.token.partition(".")[0]  # number and server of the epoch


async def test_an_entry_that_another_worker_has_read_is_refused_and_stays(queue: Queue, watch: Watch) -> None:
    """After a restart that lost a read, two workers may have one entry: the pending list tells whose it is."""
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    await watch.look()
    [claim] = await queue.worker("w2").claim(Stage.INIT, entries)
    assert claim.status == "stale"
    await watch.nothing_changed()
    [claim] = await queue.claim(Stage.INIT, entries)
    assert claim.status == "claimed"


async def test_an_entry_with_another_token_than_its_jobs_is_refused(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    [entry] = await queue.read(Stage.INIT)
    assert entry.claim is not None
    await watch.look()
    other = entry._replace(claim=entry.claim._replace(token=Token("9-00000000.1")))
    assert [claim.status for claim in await queue.claim(Stage.INIT, [other])] == ["stale"]
    await watch.nothing_changed()


async def test_what_was_never_read_is_not_claimed(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    job = await queue.snapshot(JOB)
    await watch.look()
    [claim] = await queue.claim(Stage.INIT, [Entry(JOB, EntryId(job.entry))])
    assert claim.status == "stale"
    await watch.nothing_changed()


async def test_a_hundred_jobs_are_claimed_in_one_call(queue: Queue) -> None:
    await queue.admitted(n=100)
    held = await queue.take(Stage.INIT, count=100)
    assert [each.ref for each in held] == [JobRef(f"acme:r:g:{index}") for index in range(100)]
