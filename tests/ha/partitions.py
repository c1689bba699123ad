"""What was acknowledged in replicated mode outlives every partition, and without it does not.

Run by `make test-ha`: each server, Sentinel and client is a machine of its own (`tests.ha.network`), as root.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from prorl_mq.process.chain import Chain
from prorl_mq.schema.ids import GroupRef
from tests.ha.network import Network, network
from tests.ha.stand import Stand, queue_of, stand, submissions, until
from tests.ha.test_service import served
from tests.support.queue import Queue

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(180)]
PRIMARY, OTHERS = "r0", ("r1", "r2")
SENTINELS = ("s0", "s1", "s2")
REST = (*OTHERS, "s1", "s2", "far")  # the side of the majority, with a client
NEAR = "near"  # a client on the primary's side


class Client:
    """Writers on another machine."""

    def __init__(self, here: Stand, net: Network, name: str, *, first: int) -> None:
        self.acknowledged: set[GroupRef] = set()
        self._here = here
        self._net = net
        self._name = name
        self._first = first
        self._ended = False

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator["Client"]:
        work = asyncio.create_task(self._net.within(self._name, self._write))
        try:
            await self.more(20)
            yield self
        finally:
            self._ended = True
            await work

    async def more(self, count: int) -> None:
        goal = len(self.acknowledged) + count

        async def reached() -> bool:
            return len(self.acknowledged) >= goal

        await until(reached)

    async def _write(self) -> None:
        queue = queue_of(self._here.settings)
        tasks = [asyncio.create_task(self._submit(queue, self._first + place)) for place in range(2)]
        try:
            while not self._ended:  # its loop is another one than that which ends it
                await asyncio.sleep(0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await queue.store.redis.aclose()

    async def _submit(self, queue: Queue, number: int) -> None:
        async for ref in submissions(queue, number):
            self.acknowledged.add(ref)


@contextlib.asynccontextmanager
async def machines(*, binary: str | None = None) -> AsyncIterator[tuple[Stand, Network]]:
    with network() as net:

        def placed(chain: Chain, _: Path) -> None:
            for name, server in zip((PRIMARY, *OTHERS, *SENTINELS), (*chain.nodes, *chain.sentinels), strict=True):
                server.host = net.add(name)
                server.inside = ("ip", "netns", "exec", net.namespace(name))
            for name in (NEAR, "far"):
                net.add(name)

        async with stand(binary=binary, kept=False, prepared=placed) as here:
            yield here, net


async def promoted(here: Stand) -> None:
    async def seen() -> bool:
        return await here.chain.primary() == 1

    await until(seen)


async def followed(here: Stand) -> None:
    """The old primary, which can be reached again, has become a replica; the chain is repaired."""

    async def one() -> bool:
        with contextlib.suppress(RedisError, OSError):
            return b"role:slave" in await here.chain.nodes[0].ask("INFO", "replication")
        return False

    await until(one, within_s=60)
    await here.chain.repair()


async def unguarded(here: Stand) -> None:
    """The control: nobody waits for replicas, and no server needs one."""
    await here.whole()
    for node in here.chain.nodes:
        await node.ask("CONFIG", "SET", "min-replicas-to-write", "0")


async def judged(here: Stand, *clients: Client) -> set[GroupRef]:
    """What is lost of all that clients have been told; a repeat of the rest adds nothing."""
    for client in clients:
        here.acknowledged |= client.acknowledged
    assert len(here.acknowledged) > 80
    lost = await here.lost()
    here.acknowledged -= lost
    assert await here.repeated() == {"already"}
    print(f"{len(lost)} of {len(here.acknowledged) + len(lost)} acknowledged groups lost")
    return lost


@pytest.mark.parametrize("replicated", [True, False])
async def test_a_primary_that_some_clients_and_one_sentinel_still_reach(replicated: bool) -> None:
    """The replica is promoted on the other side, whose clients continue; those on this side are told nothing."""
    async with machines() as (here, net):
        await (here.replicated() if replicated else unguarded(here))
        near, far = (Client(here, net, name, first=first) for name, first in ((NEAR, 100), ("far", 200)))
        async with near.writing(), far.writing():
            net.part([PRIMARY, "s0", NEAR], REST)
            before = len(near.acknowledged)
            await promoted(here)
            await far.more(40)
            apart = len(near.acknowledged) - before
            net.heal()
            await followed(here)
            await near.more(20)
        lost = await judged(here, near, far)
        assert bool(lost) is not replicated
        assert bool(apart) is not replicated or apart <= 2, "an answer may have been under way"


@pytest.mark.parametrize("replicated", [True, False])
async def test_a_primary_whose_packets_get_lost_while_it_hears_everybody(replicated: bool) -> None:
    """It still hears its replica for a while, and so may take writes. No Sentinel hears it."""
    async with machines() as (here, net):
        await (here.replicated() if replicated else unguarded(here))
        near, far = (Client(here, net, name, first=first) for name, first in ((NEAR, 100), ("far", 200)))
        async with near.writing(), far.writing():
            net.cut([PRIMARY], (*REST, "s0"))
            await promoted(here)
            await far.more(40)
            net.heal()
            await followed(here)
            await near.more(20)
        assert bool(await judged(here, near, far)) is not replicated


async def test_a_primary_that_does_not_hear_its_replica_refuses_until_it_does() -> None:
    """The replica gets everything, and its confirmations get lost. Sentinels see nothing wrong: nobody is promoted."""
    async with machines() as (here, net):
        await here.replicated()
        near = Client(here, net, NEAR, first=100)
        async with near.writing(), here.writing():
            await here.more(40)
            net.cut(["r1"], [PRIMARY])

            async def refused() -> bool:
                try:
                    await here.chain.nodes[0].ask("SET", "{ha}:taken", "1")
                except RedisError as error:
                    return str(error).startswith("NOREPLICAS")
                return False

            await until(refused)
            assert await here.chain.primary() == 0
            net.heal()
            await here.more(40)
            await near.more(40)
        assert await judged(here, near) == set()
        assert await here.chain.primary() == 0


async def test_a_client_that_is_cut_off_from_the_primary_alone_goes_on_when_it_is_back() -> None:
    """Others notice nothing, nobody is promoted, and what it repeats counts once."""
    async with machines() as (here, net):
        await here.replicated()
        near = Client(here, net, NEAR, first=100)
        async with near.writing(), here.writing():
            net.part([NEAR], [PRIMARY])
            before = len(near.acknowledged)
            await here.more(300)
            assert len(near.acknowledged) - before <= 2, "answers that were under way"
            net.heal()
            await near.more(20)
        assert await judged(here, near) == set()
        assert await here.chain.primary() == 0


async def test_no_process_ends_and_no_attempt_is_lost_when_the_primary_is_cut_off_from_the_rest() -> None:
    """The service reaches both sides all the time: it leaves the primary that takes nothing any more."""
    async with machines() as (here, net):
        await served(here, lambda: net.part([PRIMARY], (*REST, "s0")))
        assert await here.chain.primary() == 1
