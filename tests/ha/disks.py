"""`--durability replicated+synced`: what is acknowledged is on disks. Run by `make test-ha`."""

import pytest

from prorl_mq.errors import ServerUnfit, Unconfirmed
from prorl_mq.store.server import fitness, replicas
from tests.conftest import binaries
from tests.ha.stand import stand

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]
WAITAOF = "valkey" in binaries()  # Redis has it since 7.2


@pytest.mark.skipif(not WAITAOF, reason="Redis 7.0 has no WAITAOF: the next test sees that it is refused")
@pytest.mark.parametrize("synced", [True, False])
async def test_a_replica_whose_disk_has_nothing_confirms_nothing(synced: bool) -> None:
    """The control: its memory is enough."""
    async with stand(kept=False) as here:
        await here.whole()
        await replicas.switch(here.store, 1, synced=synced)
        await here.queue.submit("first")
        await here.chain.nodes[1].ask("CONFIG", "SET", "appendonly", "no")
        here.store.outage_ms = 1_000
        if synced:
            with pytest.raises(Unconfirmed, match="0 of 1 replicas have synced it"):
                await here.queue.submit("second", batch="second")
        else:
            await here.queue.submit("second", batch="second")


async def test_servers_that_cannot_are_refused() -> None:
    async with stand(kept=False) as here:
        await here.whole()
        redis, keys = here.store.redis, here.store.keys
        if not WAITAOF:
            with pytest.raises(ServerUnfit, match="it needs WAITAOF"):
                await fitness.syncs(redis, keys, replicas=1)
            return
        await fitness.syncs(redis, keys, replicas=1)
        await here.chain.nodes[1].ask("CONFIG", "SET", "appendonly", "no")
        with pytest.raises(ServerUnfit, match="set appendonly yes there"):
            await fitness.syncs(redis, keys, replicas=1)
