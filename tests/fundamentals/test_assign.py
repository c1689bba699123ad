"""assign: the least loaded backend of a pool is reserved for a leased job."""

import pytest

from prorl_mq.ids import Token
from prorl_mq.messages import Stage
from prorl_mq.moves import Held
from tests.fundamentals.places import J
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio

B1, B2, B3 = "http://b1", "http://b2", "http://b3"


async def pool(queue: Queue, *addresses: str) -> None:
    for address in addresses:
        await queue.broker.join(POOL, address, address.encode())


async def running(queue: Queue, n: int = 1) -> list[Held]:
    await queue.admitted(n=n)
    return await queue.take(Stage.INIT)


async def test_the_least_loaded_backend_is_reserved(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    await queue.command("ZADD", queue.keys.pool(POOL), 3, B1, 1, B2)
    await watch.look()
    assert await queue.broker.assign(held) == [b"assigned", B2.encode(), B2.encode()]
    assert await watch.changes() == {f"+ {J} backend": B2, f"pool:policy {B2}": "1 → 2"}


async def test_a_repeat_keeps_the_reservation(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    first = await queue.broker.assign(held)
    await watch.look()
    assert await queue.broker.assign(held) == [b"already", *first[1:]]
    await watch.nothing_changed()


async def test_many_jobs_are_spread_evenly(queue: Queue) -> None:
    await pool(queue, B1, B2, B3)
    for held in await running(queue, 9):
        await queue.broker.assign(held)
    assert [await queue.load(address) for address in (B1, B2, B3)] == [3, 3, 3]


async def test_a_backend_that_failed_the_job_is_exchanged_for_another(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    await queue.broker.assign(held)
    await watch.look()
    assert (await queue.broker.assign(held, exclude=[B1]))[:2] == [b"assigned", B2.encode()]
    assert await watch.changes() == {
        f"{J} backend": f"{B1} → {B2}",
        f"pool:policy {B1}": "1 → 0",
        f"pool:policy {B2}": "0 → 1",
    }


async def test_without_another_backend_there_is_none_and_the_reservation_stays(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await queue.broker.assign(held)
    await watch.look()
    assert await queue.broker.assign(held, exclude=[B1]) == [b"none"]
    await watch.nothing_changed()


async def test_the_backend_that_holds_the_prompt_is_preferred_within_a_bound(queue: Queue) -> None:
    await pool(queue, B1, B2)
    first, second = await running(queue, 2)
    await queue.command("ZADD", queue.keys.pool(POOL), 2, B2)
    assert (await queue.broker.assign(first, prefer=B2, bound=2))[1] == B2.encode()
    assert (await queue.broker.assign(second, prefer=B2, bound=2))[1] == B1.encode()


async def test_a_draining_backend_gets_no_new_jobs_and_keeps_its_own(queue: Queue) -> None:
    await pool(queue, B1)
    first, second = await running(queue, 2)
    await queue.broker.assign(first)
    await queue.broker.leave(POOL, B1, reason="update", drain=True)
    assert await queue.broker.assign(second) == [b"none"]
    assert (await queue.broker.assign(first))[0] == b"already"


async def test_the_job_of_a_backend_that_has_left_moves(queue: Queue) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    await queue.broker.assign(held)
    await queue.broker.leave(POOL, B1, reason="died", drain=False)
    assert (await queue.broker.assign(held))[:2] == [b"assigned", B2.encode()]
    await queue.broker.release([held])
    assert await queue.load(B2) == 0


async def test_no_counter_falls_below_zero_when_a_backend_left_and_came_back(queue: Queue) -> None:
    """Its reservations were forgotten; a job that still names it must not take from what came later."""
    await pool(queue, B1, B2)
    first, second = await running(queue, 2)
    await queue.broker.assign(first)
    await queue.broker.assign(second)
    for address in (B1, B2):
        await queue.broker.leave(POOL, address, reason="died", drain=False)
    await pool(queue, B1, B2)
    await queue.broker.assign(first, exclude=[B1])
    assert await queue.load(B1) == 0
    await queue.broker.release([second])
    assert await queue.load(B2) >= 0


async def test_a_stale_token_or_a_job_that_is_not_leased_reserves_nothing(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await watch.look()
    assert await queue.broker.assign(held._replace(token=Token("1"))) == [b"stale"]
    await watch.nothing_changed()
    await queue.broker.release([held])
    await watch.look()
    assert await queue.broker.assign(held) == [b"stale"]
    await watch.nothing_changed()


async def test_an_empty_pool_has_none(queue: Queue, watch: Watch) -> None:
    [held] = await running(queue)
    await watch.look()
    assert await queue.broker.assign(held) == [b"none"]
    await watch.nothing_changed()


async def test_a_backend_at_its_limit_is_passed_over(queue: Queue) -> None:
    """The bound holds for reservations, so it cannot be raced past."""
    await queue.broker.join(POOL, B1, b"about", limit=1)
    first, second = await running(queue, n=2)
    assert (await queue.broker.assign(first))[0] == b"assigned"
    assert await queue.broker.assign(second) == [b"none"]
    await queue.broker.join(POOL, B2, b"about")
    assert (await queue.broker.assign(second))[1] == B2.encode()
