"""put: a blob that nothing owns yet dies by its TTL."""

import pytest

from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio

BYTES = bytes(range(256))


async def test_the_bytes_are_kept_as_they_are_and_have_a_ttl(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.store.put(queue.keys.prefix + f"blob:{JOB}:1:trajectory", BYTES, ttl_ms=60_000)
    assert await watch.changes() == {
        f"+ blob:{JOB}:1:trajectory": "string",
        f"+ blob:{JOB}:1:trajectory ttl": "yes",
        f"+ blob:{JOB}:1:trajectory value": "<packed>",
    }
    assert await queue.command("GET", queue.keys.prefix + f"blob:{JOB}:1:trajectory") == BYTES


async def test_a_repeat_changes_nothing_but_the_ttl(queue: Queue, watch: Watch) -> None:
    key = queue.keys.prefix + f"blob:{JOB}:1:trajectory"
    await queue.store.put(key, BYTES, ttl_ms=1_000)
    await watch.look()
    await queue.store.put(key, BYTES, ttl_ms=60_000)
    await watch.nothing_changed()
    assert await queue.command("PTTL", key) > 1_000
