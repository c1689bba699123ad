"""Everything at once: tenants, DAPO, SWE-bench, a harness, new weights, fail-overs, upgrades and kills; then fsck.

`make soak-mixed`. PRORL_SOAK_MINUTES says for how long, PRORL_CHAOS_SEEDS in which order.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from prorl_mq.cli.local import upgrade
from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.redis import RedisDoor
from prorl_mq.clock import monotonic, wall_ms
from prorl_mq.errors import ProrlError
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from prorl_mq.store.core import PROTOCOL
from prorl_mq.store.store import Store
from prorl_mq.testing.wire import FakeFault
from sandbox.keeper import place
from sandbox.keeper.wire import counts
from tests.chaos.mixed_trainers import Policy, Trainer, drawing, earned, fixing, informative, walking
from tests.chaos.upgrade import speaking
from tests.ha.stand import Stand, queue_of, stand
from tests.ha.test_service import world_of
from tests.sandbox.conftest import TOOLS_DIR
from tests.support.service import assert_nothing_left, until
from tests.support.walk import vocabulary
from tests.support.world import World
from tests.swe.rows import IMAGES
from workers.external.harness import AGENTS

MINUTES = float(os.environ.get("PRORL_SOAK_MINUTES", "60"))
SEED = int(os.environ.get("PRORL_CHAOS_SEEDS", "1").split(",")[0])
WORKERS = 2  # a stage
TENANTS = ("red", "blue")
NEXT = str(int(PROTOCOL) + 1)
STARTED_S = 600.0  # on a machine that has ten times the work that it can do
WHOLE_S = 180.0
UPGRADES = 20  # tries of one
BACKEND_FAULTS = (FakeFault.RESET, FakeFault.ERROR, FakeFault.CUT, FakeFault.BUSY)
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(MINUTES * 60 + 1_500)]


class Disturbance:
    """Deals a deck of faults again and again, each a few seconds after the last, until it is stopped."""

    def __init__(self, world: World, here: Stand, policies: list[Policy], rng: random.Random) -> None:
        self.world, self.here, self.policies, self.rng = world, here, policies, rng
        self.done: Counter[str] = Counter()
        self.ended_alone: list[str] = []
        self.whole_s: list[float] = []  # of each fail-over, until the chain could bear another
        self.speaks = PROTOCOL
        self._switching = False
        self._deck: dict[Callable[[], Awaitable[None]], int] = {
            self.worker: 6, self.frozen: 3, self.api: 2, self.keeper: 2, self.failover: 2, self.backend: 2,
            self.upgraded: 1,
        }  # fmt: skip

    async def deal(self) -> None:
        while True:
            cards = [card for card, times in self._deck.items() for _ in range(times)]
            self.rng.shuffle(cards)
            for card in cards:
                await asyncio.sleep(self.rng.uniform(2, 8))
                await card()
                self.done[card.__name__] += 1

    async def watch(self) -> None:
        """What ends by itself is told, and starts again as an operator's supervisor would start it."""
        while True:
            await asyncio.sleep(1)
            self.look()

    def look(self) -> None:
        for name, process in [*self.world.workers.items(), *self.world.apis.items()]:
            if process.poll() is not None:
                if not self._switching:
                    self.ended_alone.append(f"{name} ended with {process.returncode}: {self.world.log(name)[-400:]}")
                self.world.restart(name)

    async def worker(self) -> None:
        """One at a time: on a busy machine, where a start takes minutes, all would be killed before they work."""
        while len(up := await self._up()) < WORKERS * len(Stage):
            await asyncio.sleep(1)
        self._kill(self.rng.choice(up))

    async def _up(self) -> list[str]:
        known: list[bytes] = await self.here.store.read("ZRANGE", self.here.store.keys.workers, 0, -1)
        pids = {name.decode().rpartition("-")[2] for name in known}
        return [name for name, process in sorted(self.world.workers.items()) if str(process.pid) in pids]

    async def api(self) -> None:
        self._kill(self.rng.choice(sorted(self.world.apis)))

    async def keeper(self) -> None:
        self._kill("keeper-0")

    async def frozen(self) -> None:
        """Until its leases are long over."""
        name = self.rng.choice([name for name in sorted(self.world.workers) if name != "keeper-0"])
        process = self.world.workers[name]
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.8 * self.world.lease_ms / 1000)
        process.send_signal(signal.SIGCONT)

    async def failover(self) -> None:
        """The primary dies; the next fault comes once the chain is whole again."""
        began = monotonic()
        self.here.signal_primary(signal.SIGKILL)
        await self.here.whole(WHOLE_S)
        self.whole_s.append(monotonic() - began)

    async def backend(self) -> None:
        self.rng.choice(self.policies).backend.fail_next(*self.rng.sample(BACKEND_FAULTS, 2))

    async def upgraded(self) -> None:
        """To a release of another protocol, while the backlog is full and workers die."""
        other = PROTOCOL if self.speaks == NEXT else NEXT
        dying = asyncio.create_task(self._dying())
        try:
            async with store_at(self.here, "upgrade") as store:
                await self._chosen(store, other)
        finally:
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)
        self._switching = True
        self.speaks = self.here.store.protocol = other
        speaking(self.world, other)
        for name in [*self.world.workers, *self.world.apis]:
            self._kill(name)
        self._switching = False

    async def _chosen(self, store: Store, other: str) -> None:
        """As an operator who repeats the command where it says so."""
        for left in reversed(range(UPGRADES)):
            store.protocol = NEXT  # the newer of both has the command
            try:
                await upgrade.upgrade(store, other, say=lambda _: None)
                break
            except ProrlError as error:
                if not left or "Try again" not in str(error):
                    raise
                _say(str(error))

    async def _dying(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(2, 8))
            await self.worker()

    def _kill(self, name: str) -> None:
        self.world.kill(name)
        self.world.restart(name)


async def announcing(clients: list[AsyncClient], rng: random.Random) -> None:
    """New weights every twenty seconds, in each way that a trainer may ask for."""
    version = 0
    while True:
        await asyncio.sleep(20)
        version += 1
        for client in clients:
            mode = rng.choice(["keep", "drain", "abort"])
            await client.announce_policy_version("policy", version, mode, f"/weights/{version}")


@contextlib.asynccontextmanager
async def store_at(here: Stand, name: str) -> AsyncIterator[Store]:
    queue = queue_of(here.settings)
    queue.store.name = name
    try:
        yield queue.store
    finally:
        await queue.store.redis.aclose()


async def started(world: World, here: Stand, policies: list[Policy]) -> None:
    world.directory.chmod(0o755)
    (world.directory / "state").mkdir(mode=0o755)
    tokens = world.directory / "tokens.toml"
    tokens.touch(mode=0o600)
    tokens.write_text("".join(f'[tenants.{name}]\ntoken = "token-of-{name}"\n' for name in TENANTS))
    world.env |= vocabulary(world.directory / "model") | {
        "PRORL_TOKENS": str(tokens),
        "PRORL_SANDBOX_TOOLS": str(TOOLS_DIR),
        "PRORL_SWE_IMAGES": str(IMAGES / "images.json"),
        AGENTS: str(TOOLS_DIR / "agents"),
    }
    for tenant, policy in zip(TENANTS, policies, strict=True):
        await pools.add(here.store, f"{tenant}:policy", policy.backend.address)
    world.start_keeper()
    for number in range(WORKERS):
        world.start_api(number)
        for stage in Stage:
            world.start_worker(stage, number)

    async def known() -> bool:
        return int(await here.store.read("ZCARD", here.store.keys.workers)) >= WORKERS * len(Stage)

    await until(known, within_s=STARTED_S)


def client_of(world: World, tenant: str, number: int) -> AsyncClient:
    uds = str(world.directory / f"api-{number}.sock")
    return AsyncClient("http://api", uds=uds, token=f"token-of-{tenant}", patience_s=300)


def direct(here: Stand, tenant: str) -> AsyncClient:
    """A trainer without HTTP."""
    client = AsyncClient("unix:///nowhere", tenant=tenant, patience_s=300)
    client._door = RedisDoor(here.settings, tenant=tenant)
    return client


def test_the_account_of_a_trainer_notices_what_it_is_for() -> None:
    """The control of the judge."""
    trainer = Trainer(AsyncClient("http://nowhere"), "run", walking("run", 1, 1), earned)
    trainer.submitted, trainer.closed = {"a", "b"}, Counter({"a": 2, "c": 1})
    assert trainer.faults() == ["run: a came 2 times", "run: c was never submitted", "run: b never came"]


async def test_everything_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(SEED)
    policies = [Policy(0.1), Policy(0.1)]
    async with contextlib.AsyncExitStack() as stack:
        for policy in policies:
            await stack.enter_async_context(policy.backend)
        directory = tmp_path_factory.mktemp("mixed")
        here = await stack.enter_async_context(stand(say=_say, logs=tmp_path_factory.mktemp("chain")))
        await here.whole(WHOLE_S)
        world = world_of(here, directory, "replicated")
        world.sandbox, world.handlers, world.slots = "bubblewrap", "chaos,walk,swe", 8
        stack.callback(world.stop)
        speaking(world, PROTOCOL)
        await started(world, here, policies)
        clients = [
            *(client_of(world, tenant, number) for tenant, number in (("red", 0), ("red", 1), ("blue", 1))),
            direct(here, "blue"),
        ]
        for client in clients:
            await stack.enter_async_context(client)
        red, drawn, blue, straight = clients
        trainers = [
            Trainer(red, "walks", walking("walks", 6, 12), earned),
            Trainer(drawn, "dapo", drawing("dapo", 24), informative),
            Trainer(blue, "swe", fixing("swe"), earned),
            Trainer(straight, "direct", walking("direct", 4, 8), earned),
        ]
        disturbance = Disturbance(world, here, policies, rng)
        disturbing = [
            asyncio.create_task(each)
            for each in (
                disturbance.deal(),
                disturbance.watch(),
                announcing([red, blue], rng),
                telling(trainers, disturbance),
            )
        ]
        working = [asyncio.create_task(trainer.work(MINUTES * 60)) for trainer in trainers]
        try:
            await _whichever_ends_first(working, disturbing, MINUTES * 60)
            for task in disturbing:
                task.cancel()
            await asyncio.gather(*disturbing, return_exceptions=True)
            for process in [*world.workers.values(), *world.apis.values()]:
                process.send_signal(signal.SIGCONT)
            await asyncio.gather(*working)
        finally:
            for task in [*working, *disturbing]:
                task.cancel()
        print(_told(trainers, disturbance))
        disturbance.look()
        assert [fault for trainer in trainers for fault in trainer.faults()] == []
        assert disturbance.ended_alone == []
        assert all(trainer.closed for trainer in trainers)
        assert trainers[1].reports
        await assert_nothing_left(here.store)
        await until(lambda: _no_sandbox(world), within_s=60)


async def _whichever_ends_first(
    working: list[asyncio.Task[None]], disturbing: list[asyncio.Task[None]], seconds: float
) -> None:
    """Waits so long, or until a task fails."""
    done, _ = await asyncio.wait([*working, *disturbing], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        await task


async def _no_sandbox(world: World) -> bool:
    with contextlib.suppress(OSError, ProrlError):
        return (await counts(place.place(world.directory / "state", world.namespace, "n0"))).live == 0
    return False


def _told(trainers: list[Trainer], disturbance: Disturbance) -> str:
    groups = ", ".join(f"{trainer.run} {len(trainer.closed)}" for trainer in trainers)
    faults = ", ".join(f"{name} {times}" for name, times in sorted(disturbance.done.items()))
    whole = f"whole again after {max(disturbance.whole_s, default=0):.1f} s at most"
    return f"\ngroups: {groups}; DAPO batches {trainers[1].reports}\nfaults: {faults}; {whole}"


async def telling(trainers: list[Trainer], disturbance: Disturbance) -> None:
    """How it goes, once a minute, with what is wrong so far."""
    while True:
        await asyncio.sleep(60)
        wrong = [each for trainer in trainers for each in trainer.wrong]
        _say(" ".join([_told(trainers, disturbance), *wrong, *disturbance.ended_alone]))


def _say(text: str) -> None:
    print(f"{wall_ms() // 1000} {text}", flush=True)
