"""Sentinels whose clocks step, for real: they are in TILT, and promote nobody for a while. Run by `make test-ha`."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from bench.chaos.disturb import Disturbance
from prorl_mq.errors import RedisUnavailable
from prorl_mq.process import chain
from prorl_mq.process.chain import Chain
from prorl_mq.process.ports import free_port
from prorl_mq.store.server import primary, replicas
from tests.ha.stand import Stand, Writers, queue_of, stand, until
from tests.ha.test_failover import until_promoted

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(180)]
HOUR_S = NEVER_S = 3600.0


@contextlib.asynccontextmanager
async def shifting(sentinels: Sequence[int], *, kept: bool = False) -> AsyncIterator[tuple[Stand, Disturbance]]:
    """Some of the Sentinels have a clock that can be stepped."""
    clocks = list[Disturbance]()

    def shifted(chain: Chain, directory: Path) -> None:
        clocks.append(Disturbance(directory / "clock"))
        for place in sentinels:
            chain.sentinels[place].environment = clocks[0].environment

    async with stand(kept=kept, prepared=shifted) as here:
        yield here, clocks[0]


async def tilted(here: Stand) -> bool:
    """The check of `doctor` and of the API's start says so."""
    found = replicas.faults(*await replicas.look(here.store, here.settings))
    return any("is in TILT" in each for each in found)


async def until_tilted(here: Stand) -> None:
    await until(lambda: tilted(here))


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_two_sentinels_promote_while_the_third_is_in_tilt(step_s: float) -> None:
    async with shifting([0]) as (here, clock):
        await here.replicated()
        async with here.writing():
            await here.more(50)
            assert not await tilted(here)
            clock.set_clock(step_s)
            await until_tilted(here)
            here.signal_primary(signal.SIGKILL)
            await here.more(100)
        assert await here.lost() == set()
        assert await here.repeated() == {"already"}


@pytest.mark.parametrize(("step_s", "kept"), [(HOUR_S, False), (-HOUR_S, True)])
async def test_while_all_are_in_tilt_nothing_is_acknowledged_and_then_the_replica_is_promoted(
    step_s: float, kept: bool
) -> None:
    """A host whose clock jumps has all of them at once. They are tuned to three seconds of it. Those of a clock that
    was set back see nobody fail until it is where it was: who keeps the chain starts them again.
    """
    async with shifting([0, 1, 2], kept=kept) as (here, clock):
        await here.replicated()
        async with here.writing():
            await here.more(50)
            clock.set_clock(step_s)
            await until_tilted(here)
            here.signal_primary(signal.SIGKILL)
            before = len(here.acknowledged)
            while not kept and await tilted_by_themselves(here):
                assert len(here.acknowledged) <= before + 4, "answers that were under way"
            await here.more(100)
        assert await here.lost() == set()


@pytest.mark.parametrize("known", [True, False])
async def test_sentinels_that_start_again_promote_where_the_primary_is_gone(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file says which replica there is. The control: a new Sentinel learns it of the primary alone."""
    if not known:
        monkeypatch.setattr(chain, "SENTINEL", chain.SENTINEL.replace("sentinel known-replica {name} {replica}\n", ""))
    async with stand(kept=False) as here:
        await here.replicated()
        here.signal_primary(signal.SIGKILL)
        for each in here.chain.sentinels:
            await asyncio.to_thread(each.stop)
        for each in here.chain.sentinels:
            await here.chain.start_sentinel(each)
        if known:
            await until_promoted(here)
        else:
            assert (await here.chain.sentinels[0].seen("prorl")).replicas == 0


async def tilted_by_themselves(here: Stand) -> bool:
    """As the Sentinels say, without a primary. All are in TILT."""
    told = [await each.ask("INFO", "sentinel") for each in here.chain.sentinels]
    return all(b"sentinel_tilt:1" in each for each in told)


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_restarted_old_primary_takes_nothing_that_it_would_lose(guarded: bool) -> None:
    """It calls itself a primary until a Sentinel converts it. The control: a server that takes writes alone, and throws
    them away. The Sentinels suspect nobody meanwhile: on a busy machine they would promote it again.
    """
    async with stand(kept=False) as here:
        await here.replicated()
        old = here.chain.order[0]
        if not guarded:
            here.chain.nodes[old].lines = "min-replicas-to-write 0\n"
        here.signal_primary(signal.SIGKILL)
        await until_promoted(here)
        for each in here.chain.sentinels:
            await each.ask("SENTINEL", "SET", chain.NAME, "down-after-milliseconds", "30000")
        here.chain.start_node(old)
        node, taken = here.chain.nodes[old], list[str]()

        async def converted() -> bool:
            with contextlib.suppress(RedisError, OSError):
                if b"role:slave" in await node.ask("INFO", "replication"):
                    return True
                name = f"{{ha}}:taken:{len(taken)}"
                await node.ask("SET", name, "1")
                taken.append(name)
            return False

        await until(converted)
        assert bool(taken) is not guarded
        kept = [await here.queue.command("EXISTS", name) for name in taken]
        assert not any(kept), "what it took alone is gone"
        assert await here.queue.submit("elsewhere")


@pytest.mark.parametrize("enough", [True, False])
async def test_a_sentinel_that_stands_still_holds_up_nobody_who_looks_for_the_primary(
    enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections, and answers none. The control waits for all of them, as long as it takes."""
    if not enough:
        answers = primary._answers
        monkeypatch.setattr(primary, "ASK_S", NEVER_S)
        monkeypatch.setattr(primary, "_answers", lambda asked, _: answers(asked, len(asked)))
    async with stand(kept=False) as here:
        await here.replicated()
        async with here.writing():
            await here.more(50)
            still = here.chain.pids["sentinel-0"]
            os.kill(still, signal.SIGSTOP)
            here.signal_primary(signal.SIGKILL)
            try:
                if enough:
                    await here.more(100)
                else:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(10):
                            await here.more(100)
            finally:
                os.kill(still, signal.SIGCONT)
            await here.more(100)
        assert await here.lost() == set()


@pytest.mark.parametrize("newest", [True, False])
async def test_a_sentinel_that_has_missed_the_election_leads_nobody_to_the_old_primary(
    newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started on another host with the old address, so that nobody tells it. It is a fault of the chain. All
    three are asked. The control goes where the earliest election leads.
    """
    answers = primary._answers
    monkeypatch.setattr(chain, "SENTINEL", chain.SENTINEL.replace("sentinel known-replica {name} {replica}\n", ""))
    monkeypatch.setattr(primary, "_answers", lambda asked, _: answers(asked, len(asked)))
    async with stand(kept=False) as here:
        await here.replicated()
        here.signal_primary(signal.SIGKILL)
        await until_promoted(here)
        old, late = here.chain.nodes[here.chain.order[0]].port, here.chain.sentinels[0]
        await asyncio.to_thread(late.stop)
        late.port = free_port()
        await here.chain.start_sentinel(late)
        if not newest:
            monkeypatch.setattr(primary, "max", min, raising=False)
        writers = Writers(here.chain.settings, queue_of(here.chain.settings))
        try:
            writers.store.outage_ms = 30_000 if newest else 3_000
            if not newest:
                with pytest.raises(RedisUnavailable):
                    await writers.more_alone(1)
                return
            await writers.more_alone(20)
            found = replicas.faults(*await replicas.look_well(writers.store, writers.settings))
            assert any(f"different primaries, 127.0.0.1:{old} and by a later" in each for each in found), found
        finally:
            await writers.store.redis.aclose()
