"""A whole service whose API processes and Redis are killed while trainers acknowledge: each group is archived once."""

import random
from collections import Counter

import pytest

from prorl_mq.archive import table
from prorl_mq.archive.shelf import Shelf
from prorl_mq.schema.codec import decode
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Task
from prorl_mq.service import submit
from prorl_mq.store import results
from prorl_mq.store.archive import waiting
from prorl_mq.store.archive.place import DIRECTORY
from prorl_mq.store.store import Store
from tests.chaos.test_kills import SEEDS
from tests.support.service import RUN, assert_nothing_left, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]
ROUNDS = 4
GROUPS = 12


def batch(number: int) -> BatchRequest:
    payload = {"llm": True, "secret": f"CANARY-{number}"}
    tasks = [Task(task_id=f"t{place}", data_source="chaos", payload=payload) for place in range(GROUPS)]
    return BatchRequest(run_id="chaos", batch_id=f"b{number}", groups=[GroupRequest(task=each, n=2) for each in tasks])


async def acknowledged(store: Store, count: int) -> set[str]:
    """Reads so many groups and acknowledges each as it comes, through whatever happens."""
    found: dict[str, GroupRecord] = {}
    while len(found) < count:
        for result in await results.collect(store, RUN, wait_ms=50):
            record = decode(result.record, GroupRecord)
            found[record.group_id] = record
            await results.acknowledge(store, RUN, [result.cursor])
    return set(found)


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_acknowledged_group_is_archived_once_whoever_is_killed(world: World, seed: int) -> None:
    """API processes, of which one writes, and Redis die by SIGKILL behind each acknowledged batch."""
    (world.directory / DIRECTORY).mkdir(mode=0o700)
    chance, names = random.Random(seed), set[str]()
    shelf = Shelf(world.directory / DIRECTORY, world.namespace)
    async with store_of(world) as store:
        await start_all(world, store, workers=1)

        async def on() -> bool:
            return bool((await waiting.state(store)).until_ms)

        async def done() -> bool:
            state = await waiting.state(store)
            return not state.groups and state.archived + state.passed_over >= len(names)

        await until(on)
        for number in range(ROUNDS):
            await submit.accept(store, "default", batch(number))
            names |= await acknowledged(store, GROUPS)

            async def begun(files: int = number) -> bool:
                waits = (await waiting.state(store)).groups
                return not waits or len(shelf.folder("default", "chaos").files()) > files

            if chance.random() < 0.5:
                await until(begun)
            for api in sorted(world.apis):  # the holder of the duty is among them
                world.kill(api)
            if chance.random() < 0.5:
                world.kill_redis()
                world.start_redis()
            for api in sorted(world.apis):
                world.restart(api)
        await until(done, within_s=60)
        state = await waiting.state(store)
        assert (state.passed_over, state.unwanted, state.incomplete, state.bytes) == (0, 0, 0, 0)
        await assert_nothing_left(store)
    files = shelf.folder("default", "chaos").files()
    seen = Counter(each.summary.group_id for file in files for each in table.footer(file.path).groups)
    assert seen == Counter(names)
    whole = list(shelf.whole("default", "chaos", damaged=lambda error: pytest.fail(str(error))))
    assert all(len(each.trajectories) == 2 for each in whole)
    assert all(b"CANARY" not in file.path.read_bytes() for file in files)
