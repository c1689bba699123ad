"""A RUN worker of more slots than one event loop can serve: several processes, which begin, crash and end together."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_mq.process.crews.division import MOST_SLOTS, divided
from prorl_mq.process.signals import AGAIN
from prorl_mq.schema.messages import Stage
from prorl_mq.store.store import Store
from prorl_mq.store.workers import WorkerStatus, living
from tests.support.service import store_of, until
from tests.support.world import World
from workers.__main__ import parse
from workers.process.division import programs

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("slots", "spare"), [(1, 0), (1, 900), (300, 0), (300, 1), (301, 0), (1000, 37), (5000, 5000)])
def test_no_process_has_more_than_it_can_serve_and_none_of_the_slots_is_lost(slots: int, spare: int) -> None:
    parts = divided(slots, spare)
    assert (sum(each for each, _ in parts), sum(more for _, more in parts)) == (slots, spare)
    assert all(each >= 1 for each, _ in parts)
    assert slots == 1 or all(each + more <= MOST_SLOTS for each, more in parts)


def made(*argv: str) -> list[list[str]]:
    options = ["--redis", "unix:///r", *argv]
    return [list(each.argv[4:]) for each in programs(parse(options), options)]


def test_each_process_has_a_share_a_name_and_a_place_for_its_metrics() -> None:
    argv = ("--stage", "run", "--slots", "400+20", "--name", "big", "--metrics-listen", "127.0.0.1:9100")
    found = made(*argv)
    one, other = (parse(each) for each in found)
    assert [(each.slots, each.spare_slots) for each in (one, other)] == [(200, 10), (200, 10)]
    assert [each.worker_name for each in (one, other)] == ["big.1", "big.2"]
    assert [each.metrics_listen for each in (one, other)] == ["127.0.0.1:9100", "127.0.0.1:9101"]
    assert [programs(parse(each), each) for each in found] == [[], []]  # they do not divide themselves again


def test_without_a_name_or_a_port_each_process_finds_its_own() -> None:
    first = parse(made("--stage", "run", "--slots", "301")[0])
    assert (first.name, first.metrics_listen) == ("", "127.0.0.1:0")


@pytest.mark.parametrize("argv", [("--stage", "run", "--slots", "300"), ("--stage", "eval", "--slots", "3000")])
def test_what_one_process_can_serve_is_not_divided(argv: Sequence[str]) -> None:
    assert made(*argv) == []


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def runs(store: Store, count: int) -> Sequence[WorkerStatus]:
    """The living RUN workers, once they are so many."""
    found: Sequence[WorkerStatus] = ()

    async def there() -> bool:
        nonlocal found
        found = [each for each in await living(store) if exists(each.pid)]
        return len(found) == count

    await until(there, within_s=60)
    return found


@pytest.mark.slow
@pytest.mark.process
async def test_a_process_that_is_killed_starts_again_and_a_signal_drains_them_all(tmp_path: Path) -> None:
    world = World(tmp_path, slots=MOST_SLOTS + 1)
    world.start_redis()
    try:
        async with store_of(world) as store:
            name = world.start_worker(Stage.RUN)
            before = await runs(store, 2)
            assert sorted(each.slots for each in before) == [150, 151]
            os.kill(before[0].pid, signal.SIGKILL)
            await runs(store, 1)
            after = await runs(store, 2)
            assert before[0].pid not in {each.pid for each in after}
            assert before[1].pid in {each.pid for each in after}
            owner = world.workers[name]
            owner.send_signal(signal.SIGUSR1)
            assert await asyncio.to_thread(owner.wait, 30) == AGAIN
            assert await runs(store, 0) == []
            assert "of 2 was killed by SIGKILL; it is restarted in 1 s" in world.log(name)
    finally:
        world.stop()
