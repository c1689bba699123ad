"""Which sandboxes a node keeps: those that a job's record owns, as Redis says, and none without its answer."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Advance, Held
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from sandbox.errors import SandboxUnavailable
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.keeper import place
from sandbox.keeper.client import KeptProvider
from sandbox.keeper.pool_shape import Shape
from sandbox.lifetime import label
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import SandboxProvider, SandboxSpec
from tests.support.queue import Queue
from workers.node.sweeping import EVAL_PURPOSE, RUN_PURPOSE, Attempt, Sweeping

pytestmark = pytest.mark.anyio
NODE = "n1"


class Swept:
    """A node with sandboxes by the name of what they are an example of."""

    def __init__(self, queue: Queue, provider: SandboxProvider, state_dir: Path) -> None:
        self.queue = queue
        self.own = provider
        self.provider = KeptProvider(provider, state_dir, queue.keys.namespace)
        self.state_dir = state_dir
        self.sweeping = Sweeping(queue.store, state_dir, NODE)
        self.names: dict[str, str] = {}

    async def make(self, name: str, held: Held, purpose: str = RUN_PURPOSE) -> None:
        spec = SandboxSpec(owner=Attempt(held.ref, held.token, purpose).name)
        self.names[(await self.provider.create(spec)).handle.sandbox_id] = name

    async def make_warm(self, name: str, service: str) -> None:
        self.names[(await self.own.create(Shape().spec(service))).handle.sandbox_id] = name

    def left(self) -> set[str]:
        return {self.names[made.sandbox_id] for _, made in label.labelled(self.state_dir) if made.alive}


@pytest.fixture
async def node(settings: RedisSettings, keys: Keys, tmp_path: Path) -> AsyncIterator[Swept]:
    try:
        provider = BubblewrapProvider(NODE, tmp_path)
    except SandboxUnavailable as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    redis = connect(settings)
    queue = Queue(redis, keys)
    await queue.prepare(NODE)
    yield Swept(queue, provider, tmp_path)
    await sweep(tmp_path, lambda owner: False)
    await provider.aclose()
    await redis.aclose()


async def test_a_sandbox_is_kept_from_init_until_run_has_given_it_up(node: Swept) -> None:
    """Whoever holds the lease meanwhile, and also while nobody does."""
    queue = node.queue
    await queue.admitted()
    [held] = await queue.take(Stage.INIT)
    await node.make("box", held)
    await node.sweeping.sweep()
    assert node.left() == {"box"}
    await queue.store.advance([Advance(held, NODE, b"")])
    await node.sweeping.sweep()
    assert node.left() == {"box"}
    [running] = await queue.take(Stage.RUN, NODE)
    await node.sweeping.sweep()
    assert node.left() == {"box"}
    await queue.reserve(running)
    await queue.store.advance([Advance(running, None, b"")])
    await node.sweeping.sweep()
    assert node.left() == set()


async def test_what_an_attempt_has_left_goes_and_its_successors_stay(node: Swept) -> None:
    queue = node.queue
    first = await queue.hold(Stage.INIT)
    await node.make("of the first attempt", first)
    await queue.fail(first)
    await node.sweeping.sweep()
    assert node.left() == set()
    scored = await queue.hold(Stage.EVAL, group="other", batch="other")
    await node.make("of an earlier stage", scored)
    await node.make("of the score", scored, EVAL_PURPOSE)
    await node.sweeping.sweep()
    assert node.left() == {"of the score"}
    await queue.finish(scored)
    await node.sweeping.sweep()
    assert node.left() == set()


async def test_others_sandboxes_and_the_pool_are_not_swept(node: Swept) -> None:
    """Another service's jobs are unknown to this Redis, and that means nothing."""
    held = await node.queue.hold(Stage.INIT)
    unknown = held._replace(ref=JobRef("acme:r:no-such-group:0"))
    await node.make("unknown job", unknown)
    await node.make_warm("warm", node.queue.keys.namespace)
    await node.make_warm("warm elsewhere", "another")
    theirs = KeptProvider(node.own, node.state_dir, "another")
    made = await theirs.create(SandboxSpec(owner=Attempt(unknown.ref, unknown.token, RUN_PURPOSE).name))
    node.names[made.handle.sandbox_id] = "another service's"
    await node.sweeping.sweep()
    assert node.left() == {"warm", "warm elsewhere", "another service's"}


async def test_workers_sweep_only_where_no_keeper_runs(node: Swept) -> None:
    """A pool without a keeper has no owner."""
    held = await node.queue.hold(Stage.INIT)
    await node.make("unknown job", held._replace(ref=JobRef("acme:r:no-such-group:0")))
    await node.make("a job's", held)
    await node.make_warm("warm", node.queue.keys.namespace)
    everything = node.left()
    async with place.occupied(place.place(node.state_dir, node.queue.keys.namespace, NODE)):
        await node.sweeping.instead_of_keeper()
        assert node.left() == everything
    await node.sweeping.instead_of_keeper()
    assert node.left() == {"a job's"}


async def test_no_answer_from_redis_never_means_gone(node: Swept, tmp_path: Path) -> None:
    held = await node.queue.hold(Stage.INIT)
    await node.make("unknown job", held._replace(ref=JobRef("acme:r:no-such-group:0")))
    nowhere = connect(RedisSettings(url=f"unix://{tmp_path}/nothing", namespace=node.queue.keys.namespace))
    store = Store(nowhere, node.queue.keys, name="w", outage_ms=100)
    sweeping = Sweeping(store, node.state_dir, NODE)
    for sweep_now in (sweeping.sweep, sweeping.instead_of_keeper):
        with pytest.raises(RedisUnavailable):
            await sweep_now()
    await nowhere.aclose()
    assert node.left() == {"unknown job"}
