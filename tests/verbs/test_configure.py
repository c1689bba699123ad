"""configure: a run's settings are stored whole, and the run is known from then on."""

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_a_run_without_a_batch_is_known_with_its_settings(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.store.configure(RUN, b'{"weight": 2}')
    assert await watch.changes() == {
        "+ run:acme:r": "hash",
        "+ run:acme:r seen": "<ms>",
        "+ runs acme:r": "<ms>",
        "+ settings:runs": "hash",
        "+ settings:runs acme:r": '{"weight": 2}',
    }


async def test_new_settings_stand_in_place_of_the_old_ones(queue: Queue) -> None:
    await queue.store.configure(RUN, b'{"weight": 2}')
    await queue.store.configure(RUN, b"{}")
    assert await queue.command("HGETALL", queue.keys.run_settings) == [RUN.encode(), b"{}"]
