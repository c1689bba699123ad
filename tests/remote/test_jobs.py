"""Jobs in remote sandboxes: workers of any node continue them, none outlives its job, a full server costs nothing."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Stage, Task
from prorl_mq.service import submit
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from sandbox.errors import NotNow, SandboxError
from sandbox.keeper.client import KeptProvider
from sandbox.protocol import SandboxSpec
from sandbox.remote.provider import RemoteProvider
from sandbox.serving.served import ServedKey
from tests.remote.machine import Machine
from tests.support.queue import Queue
from tests.support.service import acknowledge_all, assert_nothing_left, gather, start_all, store_of, until
from tests.support.walk import LIMITS, Walker, started, trajectories, walks
from tests.support.world import World
from workers.inference.waits import Waits
from workers.node.remote_sweeping import RemoteSweeping, pause_s
from workers.node.starts import NodeGuard, WatchedProvider
from workers.node.sweeping import RUN_PURPOSE, Attempt
from workers.postponed import Postponed, SharedBreakers

pytestmark = pytest.mark.anyio
STEPS = 8


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    redis = connect(settings)
    made = Queue(redis, keys)
    await made.prepare("n1")
    yield made
    await redis.aclose()


async def test_a_remote_sandbox_is_kept_as_long_as_its_job_and_no_longer(
    queue: Queue, machine: Machine, provider: RemoteProvider
) -> None:
    kept = KeptProvider(provider, machine.directory, queue.keys.namespace)
    sweeping = RemoteSweeping(queue.store, provider, machine.directory)
    await queue.admitted()
    [held] = await queue.take(Stage.INIT)
    mine = (await kept.create(SandboxSpec(owner=Attempt(held.ref, held.token, RUN_PURPOSE).name))).handle.sandbox_id
    lost = Attempt(JobRef("acme:r:no-such-group:0"), held.token, RUN_PURPOSE)
    unowned = (await kept.create(SandboxSpec(owner=lost.name))).handle.sandbox_id
    other = (await provider.create(SandboxSpec(owner="job another a b run"))).handle.sandbox_id
    assert await sweeping.sweep() == [unowned]
    await queue.store.advance([Advance(held, None, b"")])
    assert await sweeping.sweep() == []
    [running] = await queue.take(Stage.RUN)
    await queue.reserve(running)
    await queue.store.advance([Advance(running, None, b"")])
    assert await sweeping.sweep() == [mine]
    assert list(await provider.server.of_service("another")) == [other]


async def test_sandboxes_are_kept_alive_while_redis_is_away_and_while_one_cannot_be_destroyed(
    queue: Queue, machine: Machine, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProvider(provider, machine.directory, queue.keys.namespace)
    sweeping = RemoteSweeping(queue.store, provider, machine.directory)
    lost = [Attempt(JobRef(f"acme:r:no-such-group:{n}"), "t", RUN_PURPOSE) for n in range(2)]
    names = [(await kept.create(SandboxSpec(owner=each.name))).handle.sandbox_id for each in lost]
    keys = [ServedKey("one", name) for name in names]
    machine.served._ends_s = {key: end - 600 for key, end in machine.served._ends_s.items()}
    with monkeypatch.context() as away:

        async def holders(*_: object) -> None:
            raise ConnectionError("Redis is away")

        away.setattr("prorl_mq.store.jobs.holders", holders)
        with pytest.raises(ConnectionError):
            await sweeping.sweep()
    assert all(machine.served.state(key).expires_s > 800 for key in keys)
    remove, stuck = machine.served.remove, min(keys)

    async def removed(key: ServedKey) -> None:
        if key == stuck:
            raise SandboxError("it hangs in the kernel")
        await remove(key)

    monkeypatch.setattr(machine.served, "remove", removed)
    with pytest.raises(SandboxError, match="hangs in the kernel"):
        await sweeping.sweep()
    assert list(await provider.server.of_service(queue.keys.namespace)) == [stuck.name]


def test_a_long_lease_lets_no_sandbox_end() -> None:
    assert (pause_s(30_000), pause_s(3_600_000)) == (30.0, 300.0)


async def test_a_full_server_puts_a_job_aside_and_counts_no_attempt(
    queue: Queue, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedProvider(provider, SharedBreakers(queue.store), NodeGuard("n1", Waits()))

    async def full(*_: object) -> None:
        raise NotNow("full", 2.0)

    monkeypatch.setattr(provider.server, "create", full)
    with pytest.raises(Postponed) as aside:
        await watched.create(SandboxSpec(owner="a"))
    assert (aside.value.delay_ms, aside.value.error, aside.value.of_node) == (2_000, None, True)


def use(world: World, machine: Machine) -> None:
    access = machine.access()
    world.sandbox = "remote"
    world.env |= {"PRORL_SANDBOX_SERVER": access.url, "PRORL_SANDBOX_TOKEN_FILE": str(access.token_file)}


@pytest.mark.timeout(200)
async def test_a_killed_workers_rollouts_continue_in_their_sandboxes_on_another_node(
    world: World, machine: Machine
) -> None:
    """A walk on which a step was taken twice, or left out, has no reward."""
    use(world, machine)
    world.handlers = "walk"
    async with store_of(world) as store, (walker := Walker(0.1)).backend:
        await started(world, store, walker, slots=2, nodes=2)
        await submit.accept(store, "default", walks("far", 2, STEPS))
        before = await walked(walker)
        made = {state.name for state in machine.served.listed("one", world.namespace)}
        owner = await busy(world, store)
        world.kill(owner)
        records = await gather(store, None, 2, within_s=100)
        assert len(await trajectories(store, records)) == 2
        assert len(made) == 2
        assert len(before) == 2
        assert await acknowledge_all(store) == 2
        await until(lambda: nothing_is_left(machine, world))


async def walked(walker: Walker) -> dict[str, int]:
    async def so() -> bool:
        return len(walker.asked) == 2 and all(step > 0 for step in walker.asked.values())

    await until(so, within_s=60)
    return dict(walker.asked)


async def busy(world: World, store: Store) -> str:
    """A RUN worker that holds a walk."""
    pids = {str(process.pid): name for name, process in world.workers.items() if name.startswith("run")}
    for ref in ("default:chaos:far-0:0", "default:chaos:far-1:0"):
        owner = (await store.read("HGET", store.keys.job(JobRef(ref)), "owner") or b"").decode()
        if found := pids.get(owner.rpartition("-")[2]):
            return found
    raise AssertionError("nobody runs a walk")


async def nothing_is_left(machine: Machine, world: World) -> bool:
    return not machine.served.listed("one", world.namespace)


@pytest.mark.timeout(200)
async def test_whole_jobs_run_over_a_server_with_room_for_two(world: World, machine: Machine) -> None:
    """INIT, RUN and EVAL, each with a sandbox; those without room wait, and each job ends at its first attempt."""
    use(world, machine)
    machine.served._most = 2
    (world.directory / "state").mkdir(mode=0o755)
    tasks = [Task(task_id=f"t{n}", data_source="chaos", payload={"box": 1, "secret": "CANARY"}) for n in range(4)]
    request = BatchRequest(
        run_id="chaos", batch_id="full", groups=[GroupRequest(task=task, n=1) for task in tasks], limits=LIMITS
    )
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", request)
        records = await gather(store, None, 4, within_s=120)
        assert [sample.error for record in records for sample in record.samples] == [None] * 4
        assert await acknowledge_all(store) == 4
        await until(lambda: nothing_is_left(machine, world))
        await assert_nothing_left(store)
