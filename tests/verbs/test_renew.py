"""renew: a worker's heartbeat keeps its leases, none past its stage's budget."""

from collections.abc import Sequence

import pytest

from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Held, Lane, Lease
from prorl_mq.schema.messages import Stage
from prorl_mq.service.cancel import cancel
from prorl_mq.store.store import renewal
from prorl_mq.store.workers import WorkerStatus, living
from tests.support.queue import BUDGET_MS, Queue, lease_of
from tests.support.watch import Watch
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio

ABOUT: dict[str, str | int] = {"stage": "init", "node": "n1", "slots": 4, "busy": 1, "pid": 7, "started_ms": 5}


async def beat(queue: Queue, held: Sequence[Held | Lease], lease_ms: int = 90_000) -> list[str]:
    items = [lease_of(each) if isinstance(each, Held) else each for each in held]
    made = renewal(queue.keys, queue.store.name, ABOUT, items, lease_ms=lease_ms)
    return [each.decode() for each in await queue.store.call("renew", made.keys, made.arguments)]


async def test_a_beat_makes_the_worker_known_and_its_lease_longer(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.overdue(JOB)
    await watch.look()
    earliest = await queue.store.now_ms()
    assert await beat(queue, [held]) == ["held"]
    lease = int(await queue.command("ZSCORE", queue.keys.leases, JOB))
    assert earliest + 90_000 <= lease <= await queue.store.now_ms() + 90_000
    assert await watch.changes() == {
        f"leases {JOB}": "1 → <ms>",
        "+ worker:w1": "hash",
        "+ worker:w1 ttl": "yes",
        **{f"+ worker:w1 {name}": str(value) for name, value in ABOUT.items()},
        "+ workers w1": "<ms>",
    }
    assert await living(queue.store) == [
        WorkerStatus(name="w1", stage=Stage.INIT, node="n1", slots=4, busy=1, pid=7, started_ms=5)
    ]


async def test_no_beat_takes_a_lease_past_the_stages_budget(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    assert await beat(queue, [held], lease_ms=10**9) == ["held"]
    until = (await queue.snapshot(JOB)).until_ms
    assert int(await queue.command("ZSCORE", queue.keys.leases, JOB)) == until


async def test_a_stale_token_is_answered_lost_and_no_lease_changes(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.INIT)
    await beat(queue, [])
    await watch.look()
    assert await beat(queue, [held._replace(token=Token("1"))]) == ["lost"]
    assert set(await watch.changes()) <= {"workers w1"}
    assert await queue.command("ZCARD", queue.keys.leases) == 1


async def test_a_job_that_is_gone_or_over_is_lost_and_gets_no_lease(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.finish(held)
    assert await beat(
        queue, [held, Lease(JobRef("acme:r:g:9"), Token("1"), EntryId("1-1"), Lane(Stage.INIT), 0, BUDGET_MS)]
    ) == ["lost", "lost"]
    assert await queue.command("EXISTS", queue.keys.leases) == 0


async def test_a_job_that_must_stop_says_so_at_every_beat_and_keeps_its_lease(queue: Queue, watch: Watch) -> None:
    """The cancel message may have passed unheard: the next beat repeats it."""
    held = await queue.hold(Stage.INIT)
    await cancel(queue.store, "job", JOB)
    await queue.overdue(JOB)
    assert await beat(queue, [held]) == ["cancelled"]
    await watch.look()
    assert await beat(queue, [held]) == ["cancelled"]
    assert not [place for place in await watch.changes() if place.startswith(J)]
    assert int(await queue.command("ZSCORE", queue.keys.leases, JOB)) > 1


async def test_a_beat_leases_what_its_worker_has_read_and_not_claimed(queue: Queue, watch: Watch) -> None:
    """A handler that holds up the worker's loop keeps it from claiming, not its heartbeat."""
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    await beat(queue, [])
    await watch.look()
    assert await beat(queue, [held]) == ["held"]
    changed = {place: value for place, value in (await watch.changes()).items() if not place.startswith("workers")}
    assert changed == {
        f"+ {J} claimed": "<ms>",
        f"+ {J} owner": "w1",
        f"+ {J} until": "<ms>",
        f"+ leases {JOB}": "<ms>",
        f"{J} line": "… claim init T1 w1;",
        f"{J} state": "queued → leased",
    }
    assert await beat(queue, [held]) == ["held"]


async def test_a_beat_leases_nothing_that_another_worker_has_read_or_leased(queue: Queue) -> None:
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    other = queue.worker("w2")
    assert await beat(other, [held]) == ["lost"]
    assert await queue.command("ZCARD", queue.keys.leases) == 0
    assert await beat(queue, [held]) == ["held"]
    assert await beat(other, [held]) == ["lost"]


async def test_a_beat_leases_nothing_that_is_past_its_deadline(queue: Queue) -> None:
    await queue.admitted()
    [held] = await queue.begin(Stage.INIT)
    await queue.past_deadline(JOB)
    assert await beat(queue, [held]) == ["unleased"]
    assert (await queue.snapshot(JOB)).state == "queued"
