"""Each kind of fault once, on one service of real processes: nothing is lost, doubled or left over."""

import random
from collections import Counter

import pytest

from bench.chaos import account, client, faults, ours
from bench.chaos.faults import KINDS, Scene
from bench.chaos.system import finished
from prorl_mq.store.server.connection import ask

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(400)]

# A full disk has a test of its own, in tests/slurm; kills and stops of workers are those of test_kills.
TESTED_ELSEWHERE = {"disk full", "worker killed", "API killed", "Redis killed", "worker stopped"}


async def test_a_fault_of_every_kind_costs_no_job() -> None:
    kinds = [kind for kind in KINDS if kind.name not in TESTED_ELSEWHERE]
    async with ours.standing(proxied=True) as (system, store):
        system.prepare("every", jobs=320, seconds=20)
        redis = faults.client(system)
        try:
            system.start_trainer()
            assert await finished(system, 1, within_s=120)
            scene = Scene(system, random.Random(1), store, redis)
            for kind in kinds:
                await ask(redis, "CONFIG", "SET", "appendfsync", kind.appendfsync)
                await kind.injure(scene)
            assert await finished(system, len(system.groups), within_s=240), system.log("trainer")[-2000:]
        finally:
            await redis.aclose()
        entries = [*client.read(system.journal), *await ours.unread(store, system.run)]
        assert (account.lost(system.groups, entries), account.duplicated(entries)) == (0, 0)
        assert await ours.left_over(store) == []
        assert ours.ended_alone(system) == []
        counts = Counter(mark.what for mark in account.marks(system.marks))
        assert counts["end"] >= 8 * len(system.groups)
