"""A lone job's way: what is asked of Redis about its group, one after the other, from its submission to its record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from prorl_mq.duties.running import running
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Stage, Task
from prorl_mq.schema.settings import RunSettings
from prorl_mq.service.submit import accept
from prorl_mq.store import results, runs, scripts
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.worker.stage import Acting, finish, options, until, working
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio
RUN = run_ref("acme", "r")
GROUP = f"{RUN}:b-0"
# Of a script's name and a command's: each is a wait for Redis, but for two that are asked at once.
SHORTEST = ["submit", "advance", "advance", "MGET", "finish", "HGETALL", "GET", "settle"]


async def hand_on(work: Work) -> Move:
    return Move(item=Advance(work.held, None, b"", family=work.spec.data_source))


@contextlib.asynccontextmanager
async def service(settings: RedisSettings, keys: Keys) -> AsyncIterator[Store]:
    """The duties of an API process, and a worker of each stage."""
    redis = connect(settings)
    store = Store(redis, keys, name="api")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(redis.aclose)
        await stack.enter_async_context(running(settings, name="api"))
        for stage in Stage:
            acting = Acting(finish if stage is Stage.EVAL else hand_on)
            about = options(settings, stage=stage, name=stage.value)
            await stack.enter_async_context(working(about, acting))
        await until(lambda: redis.exists(keys.offer))
        yield store


async def asked(settings: RedisSettings, store: Store, batch: BatchRequest) -> list[str]:
    """The commands that name the group until its record is there."""
    names = {scripts.script(name).sha: name for name in scripts.names()}
    found = list[str]()
    watching: Redis = connect(settings)
    async with watching.monitor() as monitor:
        await accept(store, "acme", batch)
        async with asyncio.timeout(20):
            while "settle" not in found:
                told = await monitor.next_command()
                first, *words = told["command"].split(" ")
                loads = first == "EVAL"  # the text of a script, after its name was not known
                if told["client_type"] != "lua" and GROUP in told["command"] and not loads:
                    found.append(names.get(words[0], first))
    await watching.aclose()
    return found


@pytest.mark.parametrize("bounded", [False, True], ids=["at once", "by admission"])
async def test_a_lone_job_asks_for_what_it_needs(settings: RedisSettings, keys: Keys, bounded: bool) -> None:
    """Of a run with a quota it is admitted, and each stage reads its spec: the control."""
    async with service(settings, keys) as store:
        if bounded:
            await runs.configure(store, RUN, RunSettings(max_jobs=100))
        groups = [GroupRequest(task=Task(task_id="t", data_source="sums", payload={"question": "1 + 1"}))]
        found = await asked(settings, store, BatchRequest(run_id="r", batch_id="b", groups=groups))
        assert len(await results.collect(store, RUN)) == 1
        if bounded:
            assert {"admit", "MGET", *SHORTEST} == {*found} - {"HMGET"}
            assert found.count("MGET") == 3
        else:
            assert found == SHORTEST
