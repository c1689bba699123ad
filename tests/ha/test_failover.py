"""What was acknowledged in replicated mode outlives the primary, and without it does not."""

import asyncio
import os
import signal
from collections.abc import Awaitable
from pathlib import Path

import pytest
from redis.exceptions import OutOfMemoryError, RedisError

from bench.chaos.disturb import Disturbance
from prorl_mq.clock import monotonic
from prorl_mq.errors import Unconfirmed
from prorl_mq.process.chain import Chain, ChainServer
from prorl_mq.schema.items import Advance, Logged
from prorl_mq.schema.messages import Stage
from prorl_mq.store.server import replicas
from prorl_mq.store.server.nodes import TUNED
from tests.ha.stand import Stand, stand, until
from tests.support.queue import RUN

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]


async def test_a_killed_primary_loses_nothing_that_was_acknowledged() -> None:
    async with stand() as here:
        await here.replicated()
        async with here.writing():
            await here.more(100)
            here.signal_primary(signal.SIGKILL)
            await here.more(100)
        assert await here.lost() == set()
        assert await here.repeated() == {"already"}, "a repeat adds nothing"
        await here.whole()


@pytest.mark.parametrize("marked", [True, False])
async def test_a_full_primary_confirms_what_frees_its_memory(marked: bool) -> None:
    """The control: a mark that has to be made is refused there, as SET always was."""
    async with stand() as here:
        await here.replicated()
        await here.store.announce("p", 1, "keep", "")
        primary = here.chain.nodes[here.chain.order[0]]
        if not marked:
            await primary.ask("DEL", here.store.mark)  # before: a full server ends this connection (maxmemory-clients)
        await primary.ask("CONFIG", "SET", "maxmemory", "1")
        if marked:
            assert await here.store.announce("p", 2, "keep", "") == "announced"
            return
        with pytest.raises(OutOfMemoryError):
            await here.store.announce("p", 2, "keep", "")


@pytest.mark.parametrize("replicated", [True, False])
async def test_a_primary_that_dies_with_a_tail_that_no_replica_has(replicated: bool) -> None:
    """The control: without confirmations, what was acknowledged in the last second is gone."""
    async with stand(kept=False) as here:
        await (here.replicated() if replicated else here.whole())
        here.store.outage_ms = 1_000
        async with here.writing():
            await here.more(50)
            await here.cut_off_replica()
            if replicated:
                with pytest.raises(Unconfirmed, match="0 of 1 replicas"):
                    await here.queue.submit("unconfirmed")
            else:
                await here.more(50)
            here.signal_primary(signal.SIGKILL)
        await here.chain.nodes[here.chain.order[1]].ask("REPLICAOF", "NO", "ONE")
        here.store.outage_ms = 20_000
        await until_promoted(here)
        assert bool(await here.lost()) is not replicated


@pytest.mark.parametrize("replicated", [True, False])
async def test_the_record_of_a_turn_is_not_confirmed_before_a_replica_has_it(replicated: bool) -> None:
    """A call is sent behind that: else a sandbox had begun what a promoted replica has no record of. The control: one
    server's word is enough.
    """
    async with stand(kept=False) as here:
        await (here.replicated() if replicated else here.whole())
        await here.queue.prepare("n1")
        await here.queue.admitted()
        [held] = await here.queue.take(Stage.INIT)
        assert await here.store.advance([Advance(held, "n1", b"c")]) == ["advanced"]
        [held] = await here.queue.take(Stage.RUN, "n1")
        assert await here.store.log([Logged(held, 0, b"t one")]) == ["logged"]
        await here.cut_off_replica()
        here.store.outage_ms = 1_000
        if replicated:
            with pytest.raises(Unconfirmed, match="0 of 1 replicas"):
                await here.store.log([Logged(held, 1, b"t two")])
        else:
            assert await here.store.log([Logged(held, 1, b"t two")]) == ["logged"]


async def until_promoted(here: Stand) -> None:
    """The Sentinels, which know it as a replica that follows nobody, name the replica as the primary."""
    old = here.chain.order[0]

    async def seen() -> bool:
        return await here.chain.primary() not in {None, old}

    await until(seen)


async def test_a_stopped_primary_confirms_nothing_and_is_no_primary_when_it_wakes() -> None:
    async with stand() as here:
        await here.replicated()
        async with here.writing():
            await here.more(50)
            stopped = here.signal_primary(signal.SIGSTOP)
            await here.more(100)
            os.kill(stopped, signal.SIGCONT)
            await here.more(100)
        assert await here.lost() == set()
        await here.whole()


async def test_a_restarted_old_primary_takes_no_writes() -> None:
    """Until a Sentinel converts it, it calls itself a primary; nobody follows it, so it refuses."""
    async with stand(kept=False) as here:
        await here.replicated()
        old = here.chain.order[0]
        here.signal_primary(signal.SIGKILL)
        await until_promoted(here)
        here.chain.start_node(old)
        node = here.chain.nodes[old]

        async def loaded() -> bool:
            try:
                return bool(await node.ask("PING"))
            except (RedisError, OSError):
                return False

        await until(loaded)
        with pytest.raises(Exception, match=r"NOREPLICAS|READONLY"):
            await node.ask("SET", "{ha}:taken", "1")
        assert await here.queue.submit("elsewhere")


async def test_a_promoted_replica_whose_clock_is_an_hour_behind_repeats_no_token_and_no_id() -> None:
    """Tokens of the tail that it has never seen, and results below a cursor, would be taken for others."""

    def behind(chain: Chain, directory: Path) -> None:
        clock = Disturbance(directory / "clock")
        clock.set_clock(-3600)
        for node in chain.nodes[1:]:
            node.environment = clock.environment

    async with stand(kept=False, prepared=behind) as here:
        await here.replicated()
        await here.queue.prepare()
        before = await admitted(here, "a")
        await here.cut_off_replica()
        ref = (await here.queue.command("ZRANGE", here.queue.keys.backlog(RUN), 0, -1))[0]
        lost = await here.store.admit(RUN, [await here.queue.wanted(ref.decode())])
        assert lost == [4], "it was admitted, and its tokens are in the tail"
        tail = await entries(here)
        here.signal_primary(signal.SIGKILL)
        await here.chain.nodes[1].ask("REPLICAOF", "NO", "ONE")
        await until_promoted(here)
        after = await admitted(here, "b")
        assert {token for _, token in after}.isdisjoint({token for _, token in before + tail})
        assert min(place for place, _ in after) > max(place for place, _ in before + tail)


async def admitted(here: Stand, group: str) -> list[tuple[tuple[int, int], str]]:
    """A group that is admitted, and one that waits. The entries of the first: their ids and tokens."""
    known = set(await entries(here))
    await here.queue.admitted(group, batch=group, n=4)
    await here.queue.submit(f"{group}-waits", batch=f"{group}-waits", n=4)
    return [each for each in await entries(here) if each not in known]


async def entries(here: Stand) -> list[tuple[tuple[int, int], str]]:
    rows = await here.queue.command("XRANGE", here.queue.keys.stage(Stage.INIT), "-", "+")
    return [
        ((int(entry.split(b"-")[0]), int(entry.split(b"-")[1])), fields[3].split(b"\t")[0].decode())
        for entry, fields in rows
    ]


async def test_a_second_replica_must_confirm_too_until_no_sentinel_knows_it() -> None:
    """Either may be promoted, so that one of them alone proves nothing."""
    async with stand(kept=False) as here:
        await here.replicated()
        primary, _, spare = (here.chain.nodes[place] for place in here.chain.order)
        await spare.ask("REPLICAOF", "127.0.0.1", str(primary.port))

        async def known(count: int) -> bool:
            await here.queue.submit("again")
            await replicas.keep(here.store, here.settings)
            return here.store.acks == count

        await until(lambda: known(2))
        await spare.ask("REPLICAOF", "127.0.0.1", str(here.chain.nodes[here.chain.order[1]].port))
        here.store.outage_ms = 0
        with pytest.raises(Unconfirmed, match="1 of 2 replicas"):
            await here.more_alone(1_000)
        for sentinel in here.chain.sentinels:
            await sentinel.ask("SENTINEL", "RESET", "prorl")
        here.store.outage_ms = 5_000

        async def one() -> bool:
            await replicas.keep(here.store, here.settings)
            return int(await here.queue.command("HGET", here.queue.keys.epoch, "acks")) == 1

        await until(one)
        assert await known(1)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_replica_that_moves_down_the_chain_stays_there_though_sentinels_are_slow(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """The control tells one Sentinel after the other: the last ones attach it to the primary again meanwhile."""
    began = list[float]()

    async def slow(*_: object) -> None:
        began.append(monotonic())
        await asyncio.sleep(0.2)

    async def one_by_one(*calls: Awaitable[object], return_exceptions: bool) -> list[object]:
        assert return_exceptions
        return [await call for call in calls]

    chain = Chain(Path("/nowhere"), "no program", namespace="ha", say=lambda _: None)
    monkeypatch.setattr(ChainServer, "forget", slow)
    monkeypatch.setattr(Chain, "_follow", slow)
    if not at_once:
        monkeypatch.setattr(asyncio, "gather", one_by_one)
    await chain._forget_others()
    followed, *told = began
    assert len(told) == len(chain.sentinels)
    assert (told[-1] - told[0] < 0.15) is at_once
    assert told[0] - followed >= 0.2, "after the replica"


@pytest.mark.parametrize("tuned", [TUNED, (*TUNED, "ping-period", "200")])
def test_a_replica_may_be_promoted_although_its_facts_are_a_moment_late(tuned: tuple[str, ...]) -> None:
    """A Sentinel promotes none whose INFO is older than five pings, and asks for INFO once a second. The control is a
    chain whose fail-overs were given up on a busy machine.
    """
    ping_ms = int(dict(zip(tuned[::2], tuned[1::2], strict=True)).get("ping-period", "1000"))
    assert (5 * ping_ms >= 3 * 1_000) is (tuned == TUNED)
