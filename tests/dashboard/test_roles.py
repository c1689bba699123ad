"""The mirror's Redis user can write RQ's records and touch nothing else."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from redis.exceptions import NoPermissionError, ResponseError

from prorl_mq.dashboard.mirror import Mirror
from prorl_mq.dashboard.page import create_app
from prorl_mq.dashboard.projector import Projector
from prorl_mq.dashboard.rq_format import record_id
from prorl_mq.dashboard.settings import DashboardSettings
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.server.acl import users
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store, renewal
from tests.dashboard.conftest import Reader
from tests.dashboard.test_records import shown
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio


@pytest.fixture
async def users_on(queue: Queue) -> AsyncIterator[None]:
    """The users of `ops/redis.conf`, with passwords, for the namespace of the tests."""
    made = users(queue.keys.namespace)
    for name, rules in made.items():
        await queue.command("ACL", "SETUSER", name, "reset", "on", f">{name}-secret", *rules.split())
    yield
    for name in made:
        await queue.command("ACL", "DELUSER", name)


def as_user(settings: RedisSettings, name: str) -> RedisSettings:
    user = f"{settings.namespace}-{name}"
    return msgspec.structs.replace(settings, username=user, password=f"{user}-secret")


async def beat(queue: Queue) -> None:
    about = {"stage": "init", "node": "n7", "slots": 4, "busy": 1, "pid": 42, "started_ms": 1_700_000_000_000}
    made = renewal(queue.keys, "w1", about, [], lease_ms=60_000)
    await queue.store.call("renew", made.keys, made.arguments)


@pytest.mark.usefixtures("users_on")
async def test_projector_and_page_need_no_more_than_their_users_may(
    queue: Queue, settings: RedisSettings, mirrored: RedisSettings, reader: Reader
) -> None:
    """Reading the queue as a viewer, writing as the mirror's user: events, rebuild, workers, results, pages."""
    await beat(queue)
    ended = await queue.hold(Stage.EVAL, group="a")
    await queue.finish(ended, Outcome.INFRA_ERROR)
    held = await queue.hold(Stage.RUN, group="b", batch="b2")
    viewer, mirror = connect(as_user(settings, "viewer")), connect(as_user(mirrored, "mirror"))
    try:
        store = Store(viewer, queue.keys, name="dashboard")
        projector = Projector(store, Mirror(mirror, queue.keys.namespace))
        await shown(projector)
        before = reader.everything()
        await projector.rebuild()
        assert reader.everything() == before
        await shown(projector)
        about = DashboardSettings(
            role="serve", redis=settings, mirror=as_user(mirrored, "mirror"), token="correct-horse"
        )
        transport = httpx.ASGITransport(create_app(about, queue.store, mirror))
        headers = {"Authorization": "Bearer correct-horse"}
        async with httpx.AsyncClient(transport=transport, base_url="http://t", headers=headers) as client:
            for path in ("/", "/0/view/jobs", "/0/view/workers", "/0/data/workers.json", "/0/data/queues.json"):
                assert (await client.get(path)).status_code == 200, path
            for ref, stage in ((ended.ref, Stage.EVAL), (held.ref, Stage.RUN)):
                assert (await client.get(f"/0/data/job/{record_id(ref, stage)}.json")).status_code == 200
    finally:
        await viewer.aclose()
        await mirror.aclose()


@pytest.mark.usefixtures("users_on")
@pytest.mark.parametrize("database", [0, 1])
@pytest.mark.parametrize(
    "command",
    [
        ("GET", "PREFIXopen:g"), ("HSET", "PREFIXjob:j", "state", "done"), ("XADD", "PREFIXstage:init", "*", "j", "x"),
        ("XRANGE", "PREFIXevents", "-", "+"), ("GET", "PREFIXsealed:g"), ("DEL", "PREFIXleases"), ("SET", "rq:x", "1"),
        ("FLUSHDB",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"),
        ("ACL", "LIST"), ("SWAPDB", "0", "1"), ("MOVE", "rq:x", "0"), ("COPY", "rq:x", "PREFIXx"),
        ("PUBLISH", "c", "m"), ("SHUTDOWN",), ("SCRIPT", "FLUSH"), ("SUBSCRIBE", "c"),
    ],
    ids=lambda command: command[0].lower(),
)  # fmt: skip
async def test_the_mirrors_user_is_refused_everywhere_else(
    queue: Queue, settings: RedisSettings, mirrored: RedisSettings, command: tuple[str, ...], database: int
) -> None:
    redis = connect(as_user(mirrored if database else settings, "mirror"))
    execute: Any = redis.execute_command
    try:
        with pytest.raises(NoPermissionError):
            await execute(*(part.replace("PREFIX", queue.keys.prefix) for part in command))
    finally:
        await redis.aclose()


@pytest.mark.usefixtures("users_on")
@pytest.mark.parametrize("database", [0, 1])
async def test_a_script_of_the_mirrors_user_reaches_no_further(
    queue: Queue, settings: RedisSettings, mirrored: RedisSettings, database: int
) -> None:
    """It writes by one, so it may run any: Redis asks for each command in it."""
    await queue.hold(Stage.RUN)
    redis = connect(as_user(mirrored if database else settings, "mirror"))
    try:
        for command in (f"'HGET', '{queue.keys.prefix}job:j', 'f'", f"'DEL', '{queue.keys.leases}'", "'FLUSHDB'"):
            with pytest.raises(ResponseError, match=r"ACL failure in script|The user executing the script can't"):
                await ask(redis, "EVAL", f"return redis.call({command})", 0)
    finally:
        await redis.aclose()
