"""weigh: the size of an intake's oldest message; nothing changes."""

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_names_and_values_of_all_fields_count(queue: Queue, watch: Watch) -> None:
    await queue.command("XADD", queue.keys.intake(RUN), "1-1", "m", b"a message", "more", bytes(1000))
    await queue.command("XADD", queue.keys.intake(RUN), "2-1", "m", b"another")
    await watch.look()
    assert await queue.store.weigh(RUN) == [b"1-1", 1 + 9 + 4 + 1000]
    await watch.nothing_changed()


async def test_an_empty_intake_has_no_message(queue: Queue) -> None:
    assert await queue.store.weigh(RUN) == []
