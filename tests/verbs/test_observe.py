"""observe: what was seen of a backend is written down, and no evidence is lost."""

import pytest

from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio
INFO = "pool:policy:info http://b1"


async def test_a_breaker_and_facts_are_written_and_forgotten(queue: Queue, watch: Watch) -> None:
    await queue.store.join(POOL, "http://b1", b"about")
    await watch.look()
    facts = {"version": "7", "note": "raw"}
    assert await queue.store.observe(POOL, "http://b1", was="", breaker="1 0 0 0 0", facts=facts) == [b"observed"]
    assert await watch.changes() == {
        f"+ {INFO}|breaker": "1 0 0 0 0",
        f"+ {INFO}|version": "7",
        f"+ {INFO}|note": "raw",
    }
    await queue.store.observe(POOL, "http://b1", was="1 0 0 0 0", breaker="", facts={"note": ""})
    assert await watch.changes() == {f"- {INFO}|breaker": "1 0 0 0 0", f"- {INFO}|note": "raw"}


async def test_a_breaker_that_has_changed_meanwhile_is_shown_and_kept(queue: Queue, watch: Watch) -> None:
    await queue.store.join(POOL, "http://b1", b"about")
    await queue.store.observe(POOL, "http://b1", was="", breaker="1 0 0 0 0")
    await watch.look()
    answer = await queue.store.observe(POOL, "http://b1", was="", breaker="2 0 0 0 0", facts={"version": "7"})
    assert answer == [b"changed", b"1 0 0 0 0"]
    await watch.nothing_changed()


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.store.join(POOL, "http://b1", b"about")
    await queue.store.observe(POOL, "http://b1", was="", breaker="1 0 0 0 0", facts={"version": "7"})
    await watch.look()
    answer = await queue.store.observe(POOL, "http://b1", was="", breaker="1 0 0 0 0", facts={"version": "7"})
    assert answer == [b"observed"]
    await watch.nothing_changed()


async def test_one_that_is_back_begins_its_ramp_anew(queue: Queue) -> None:
    await queue.store.join(POOL, "http://b1", b"about")
    await queue.command("HSET", queue.keys.pool_info(POOL), "http://b1|since", 1)
    await queue.store.observe(POOL, "http://b1", was="", breaker="", restart=True)
    assert int(await queue.command("HGET", queue.keys.pool_info(POOL), "http://b1|since")) > 1


async def test_nothing_is_written_of_a_backend_that_has_left(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await queue.store.observe(POOL, "http://b9", was="", breaker="1 0 0 0 0", facts={"note": "x"}) == [b"gone"]
    await watch.nothing_changed()
