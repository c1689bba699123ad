"""A namespace with work in every place that there is."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.schema.ids import GroupRef, JobRef
from prorl_mq.schema.items import Advance, Held, Pause, Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.status import PauseEnd
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue
from tests.verbs.reserved import BATCH, NEXT, drawn, submit


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    redis = connect(settings)
    made = Queue(redis, keys)
    await made.prepare("n1")
    yield made
    await redis.aclose()


@pytest.fixture
async def busy(queue: Queue) -> Queue:
    """Groups named after where they are; `again` has had a refill, and a DAPO batch has one in play."""
    await drawn(queue, "carried")
    await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000)
    await submit(queue, "played", "reserve", batch=NEXT)
    await queue.store.draw(NEXT, NEXT, {GroupRef("acme:r:played"): NEXT}, drawn=0)
    await queue.finish(await held(queue, "closed", Stage.EVAL), trajectory=blob(queue, "closed"), trajectory_bytes=6)
    await queue.finish(await held(queue, "again", Stage.INIT, max_refills=1), Outcome.INFRA_ERROR)
    assert len(await queue.settle()) == 2
    await queue.fail(await held(queue, "delayed", Stage.INIT))
    await queue.admitted("paused", batch="of-paused")
    paused = Pause(JobRef("acme:r:paused:0"), queue.keys.stage(Stage.INIT))
    assert await queue.store.pause([paused], for_ms=3_600_000, ends=PauseEnd.RESUME) == ["parked"]
    told = await held(queue, "stopping", Stage.RUN)
    await queue.store.stop(Verb.CANCEL, [Stop(told.ref, b"", queue.keys.stage(Stage.RUN))])
    await queue.finish(await held(queue, "due", Stage.INIT))
    for stage in Stage:
        await held(queue, str(stage), stage)
    await queue.admitted("queued", batch="of-queued", n=2)
    await queue.submit("backlog", batch="of-backlog")
    return queue


async def held(queue: Queue, name: str, stage: Stage, **about: object) -> Held:
    """A group's only job, leased in a stage; in RUN with a backend, in EVAL with a trajectory."""
    await queue.admitted(name, batch=f"of-{name}", **about)
    [found] = await queue.take(Stage.INIT)
    if stage is not Stage.INIT:
        await queue.store.advance([Advance(found, None, b"from init")])
        [found] = await queue.take(Stage.RUN)
        await queue.reserve(found)
    if stage is Stage.EVAL:
        key = blob(queue, name)
        await queue.store.put(key, b"tokens", ttl_ms=60_000)
        await queue.store.advance([Advance(found, None, b"from run", key, 100)])
        [found] = await queue.take(Stage.EVAL)
    return found


def blob(queue: Queue, name: str) -> str:
    """The key of a group's only trajectory."""
    return f"{queue.keys.prefix}blob:acme:r:{name}:0:1-0.1:trajectory"
