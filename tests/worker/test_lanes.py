"""The task families that a worker takes, by what its neighbours on the node can continue with."""

import pytest

from prorl_mq.schema.task_schema import Schema
from prorl_mq.store import families, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import Named, made, options
from workers.stages.registry import Registry

pytestmark = pytest.mark.anyio


class Boxed(Named):
    """A family with sandboxes."""

    needs_sandbox = True


async def run_worker(queue: Queue, keys: Keys, *taken: str) -> None:
    """The node's RUN worker, as it says that it takes these families."""
    await work.enroll(queue.store, {name: Schema(open_ended=True) for name in taken}, "n1", taken)
    about = {"stage": "run", "node": "n1", "slots": 1, "busy": 0, "pid": 1, "started_ms": 1}
    about["families"] = families.digest_of(taken)
    await queue.command("HSET", keys.worker("run"), *(part for pair in about.items() for part in pair))
    await queue.command("ZADD", keys.workers, 1 << 50, "run")


async def test_init_takes_no_family_whose_sandboxes_no_run_worker_of_its_node_could_use(
    queue: Queue, settings: RedisSettings, keys: Keys
) -> None:
    """A family without sandboxes may continue on any node."""
    registry = Registry([Named("sums"), Boxed("boxed")])
    async with made(options(settings, sandbox="bubblewrap"), registry) as worker:
        await run_worker(queue, keys, "other")
        await worker.lanes.look(now=True)
        assert set(worker.lanes.taken) == {"sums"}
        await run_worker(queue, keys, "other", "boxed")
        await worker.lanes.look(now=True)
        assert set(worker.lanes.taken) == {"sums", "boxed"}
