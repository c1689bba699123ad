"""retire_run: a run that was not used for long and holds nothing is forgotten, with its settings."""

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio
LONG_AGO_MS = -60_000  # a run counts as idle although it was used just now


async def test_an_idle_run_is_forgotten(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.store.configure(RUN, b"{}")
    assert await queue.store.retire_run(RUN, idle_ms=LONG_AGO_MS) == "retired"
    await watch.nothing_changed()


async def test_a_run_that_was_used_meanwhile_stays(queue: Queue, watch: Watch) -> None:
    await queue.store.configure(RUN, b"{}")
    await watch.look()
    assert await queue.store.retire_run(RUN, idle_ms=60_000) == "in use"
    await watch.nothing_changed()


async def test_a_run_whose_groups_wait_stays(queue: Queue, watch: Watch) -> None:
    await queue.submit()
    await watch.look()
    assert await queue.store.retire_run(RUN, idle_ms=LONG_AGO_MS) == "in use"
    await watch.nothing_changed()


async def test_a_run_with_results_stays(queue: Queue, watch: Watch) -> None:
    await queue.store.configure(RUN, b"{}")
    await queue.command("XADD", queue.keys.results(RUN), "*", "a", b"an answer")
    await watch.look()
    assert await queue.store.retire_run(RUN, idle_ms=LONG_AGO_MS) == "in use"
    await watch.nothing_changed()
