"""bury: the leases of a worker that is known to be dead end, and nobody else's."""

import pytest
from msgspec.structs import replace

from prorl_mq.duties.bury import bury
from prorl_mq.schema.items import Held, Logged
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.service.cancel import cancel
from prorl_mq.store.server import acl
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store, renewal
from tests.support.queue import Queue, lease_of
from tests.support.watch import Watch
from tests.verbs.lost import Act, case
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio
STARTED_MS = 7


async def running(queue: Queue, started_ms: int = STARTED_MS) -> str:
    """A job in RUN whose worker has said when it started; its token."""
    held = await queue.hold(Stage.RUN, node="n1")
    await beat(queue, held, started_ms)
    return held.token


async def beat(queue: Queue, held: Held, started_ms: int) -> None:
    about: dict[str, str | int] = {"stage": "run", "node": "n1", "slots": 4, "started_ms": started_ms}
    made = renewal(queue.keys, "w1", about, [lease_of(held)], lease_ms=90_000)
    await queue.store.call("renew", made.keys, made.arguments)


async def said(queue: Queue, token: str, worker: str = "w1", started_ms: int = STARTED_MS) -> str:
    [answer] = await queue.worker("keeper").store.bury(worker, started_ms, [(JOB, token)])
    return answer


async def unchanged(queue: Queue, watch: Watch, token: str, answer: str) -> None:
    lease = await queue.command("ZSCORE", queue.keys.leases, JOB)
    await watch.look()
    assert await said(queue, token) == answer
    await watch.nothing_changed()
    assert await queue.command("ZSCORE", queue.keys.leases, JOB) == lease


async def test_a_lease_of_the_dead_worker_ends_now(queue: Queue, watch: Watch) -> None:
    token = await running(queue)
    before_ms = int(await queue.command("ZSCORE", queue.keys.leases, JOB))
    await watch.look()
    assert await said(queue, token) == "buried"
    assert set(await watch.changes()) <= {f"leases {JOB}"}
    ended_ms = int(await queue.command("ZSCORE", queue.keys.leases, JOB))
    assert ended_ms <= await queue.store.now_ms() < before_ms
    assert await said(queue, token) == "already"
    assert int(await queue.command("ZSCORE", queue.keys.leases, JOB)) == ended_ms


async def test_another_start_of_a_worker_with_its_name_keeps_its_leases(queue: Queue, watch: Watch) -> None:
    token = await running(queue, started_ms=8)
    await unchanged(queue, watch, token, "unknown")


async def test_a_worker_of_which_nothing_is_known_keeps_its_leases(queue: Queue, watch: Watch) -> None:
    token = await running(queue)
    await queue.command("DEL", queue.keys.worker("w1"))
    await unchanged(queue, watch, token, "unknown")


@pytest.mark.parametrize("other", ["token", "owner", "unleased"])
async def test_a_job_that_is_not_the_dead_workers_is_left_alone(queue: Queue, watch: Watch, other: str) -> None:
    token = await running(queue)
    if other == "token":
        token = "1-abc.99"
    elif other == "owner":
        await queue.command("HSET", queue.keys.job(JOB), "owner", "w2")
    else:
        await queue.command("ZREM", queue.keys.leases, JOB)
    await unchanged(queue, watch, token, "stale")


@case("bury", "already")
async def _(queue: Queue) -> Act:
    token = await running(queue)
    return lambda q: said(q, token)


async def test_a_buried_workers_jobs_continue_on_their_lane_or_begin_again(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN, node="n1")
    assert await queue.store.log([Logged(held, 0, b"record")]) == ["logged"]
    await beat(queue, held, STARTED_MS)
    assert await bury(queue.worker("keeper").store, "w1", STARTED_MS) == 1
    job = await queue.snapshot(JOB)
    assert (job.state, job.stage, job.deaths, job.stream) == (
        State.QUEUED, Stage.RUN, 1, queue.keys.stage(Stage.RUN, "n1", front=True),
    )  # fmt: skip
    assert await bury(queue.worker("keeper").store, "w1", STARTED_MS) == 0


async def test_the_redis_user_of_workers_may_bury(queue: Queue, settings: RedisSettings) -> None:
    """A keeper runs as that user."""
    await running(queue)
    user = f"{settings.namespace}-worker"
    rules = acl.users(settings.namespace)[user].split(" ")
    await queue.command("ACL", "SETUSER", user, "reset", "on", ">secret", "-@all", *rules)
    redis = connect(replace(settings, username=user, password="secret"))
    try:
        assert await bury(Store(redis, queue.keys, name="keeper"), "w1", STARTED_MS) == 1
    finally:
        await redis.aclose()
        await queue.command("ACL", "DELUSER", user)


async def test_a_buried_workers_job_that_was_told_to_stop_ends(queue: Queue) -> None:
    await running(queue)
    await cancel(queue.store, "job", JOB)
    assert (await queue.snapshot(JOB)).state == State.STOPPING
    assert await bury(queue.worker("keeper").store, "w1", STARTED_MS) == 1
    assert (await queue.snapshot(JOB)).state == State.DONE


async def test_nothing_of_another_start_is_taken_back(queue: Queue, watch: Watch) -> None:
    await running(queue, started_ms=8)
    await watch.look()
    assert await bury(queue.worker("keeper").store, "w1", STARTED_MS) == 0
    await watch.nothing_changed()
