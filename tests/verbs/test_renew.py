"""renew: a worker's heartbeat keeps its leases, none past its stage's budget."""

from collections.abc import Sequence

import pytest

from prorl_mq.schema.ids import JobRef, Token
from prorl_mq.schema.items import Held
from prorl_mq.schema.messages import Stage
from prorl_mq.service.cancel import cancel
from prorl_mq.store.store import renewal
from prorl_mq.store.workers import WorkerStatus, living
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio

ABOUT: dict[str, str | int] = {"stage": "init", "node": "n1", "slots": 4, "busy": 1, "pid": 7, "started_ms": 5}


async def beat(queue: Queue, held: Sequence[Held | tuple[JobRef, Token]], lease_ms: int = 90_000) -> list[str]:
    items = [(each.ref, each.token) if isinstance(each, Held) else each for each in held]
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
    assert await beat(queue, [held, (JobRef("acme:r:g:9"), Token("1"))]) == ["lost", "lost"]
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
