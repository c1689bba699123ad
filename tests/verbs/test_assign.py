"""assign: the least loaded backend of a pool is reserved for a leased job."""

import pytest

from prorl_mq.rules.breaker import LONGEST_SHUT_MS, Breaker, BreakerState, parse
from prorl_mq.schema.ids import Token, group_of
from prorl_mq.schema.items import Held
from prorl_mq.schema.messages import Stage
from prorl_mq.service.cancel import cancel
from prorl_mq.store.store import TRIAL_MS
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch
from tests.verbs.places import JOB, G, J

pytestmark = pytest.mark.anyio

B1, B2, B3 = "http://b1", "http://b2", "http://b3"


async def pool(queue: Queue, *addresses: str) -> None:
    for address in addresses:
        await queue.store.join(POOL, address, address.encode())


async def running(queue: Queue, n: int = 1) -> list[Held]:
    await queue.admitted(n=n)
    return await queue.take(Stage.INIT)


async def test_the_least_loaded_backend_is_reserved(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    await queue.command("ZADD", queue.keys.pool(POOL), 3, B1, 1, B2)
    await watch.look()
    assert await queue.store.assign(held) == [b"assigned", B2.encode(), B2.encode()]
    assert await watch.changes() == {
        f"+ {J} backend": B2,
        f"{J} line": f"… assign init T1 w1 {B2};",
        f"pool:policy {B2}": "1 → 2",
        f"+ {G} warm": f" {B2} ",
    }


async def test_a_repeat_keeps_the_reservation(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    first = await queue.store.assign(held)
    await watch.look()
    assert await queue.store.assign(held) == [b"already", *first[1:]]
    await watch.nothing_changed()


async def test_many_jobs_are_spread_evenly(queue: Queue) -> None:
    await pool(queue, B1, B2, B3)
    for held in await running(queue, 9):
        await queue.store.assign(held, bound=0)
    assert [await queue.load(address) for address in (B1, B2, B3)] == [3, 3, 3]


async def test_a_backend_that_failed_the_job_is_exchanged_for_another(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    await queue.store.assign(held)
    await watch.look()
    assert (await queue.store.assign(held, exclude=[B1]))[:2] == [b"assigned", B2.encode()]
    assert await watch.changes() == {
        f"{J} backend": f"{B1} → {B2}",
        f"{J} line": f"… assign init T1 w1 {B2};",
        f"pool:policy {B1}": "1 → 0",
        f"pool:policy {B2}": "0 → 1",
        f"{G} warm": f" {B1}  →  {B1} {B2} ",
    }


async def test_without_another_backend_there_is_none_and_the_reservation_stays(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await queue.store.assign(held)
    await watch.look()
    assert await queue.store.assign(held, exclude=[B1]) == [b"none"]
    await watch.nothing_changed()


async def test_the_backend_that_holds_the_groups_prompt_is_preferred_within_a_bound(queue: Queue) -> None:
    await pool(queue, B1, B2)
    jobs = await running(queue, 5)
    got = [(await queue.store.assign(held, bound=2))[1] for held in jobs]
    assert got == [each.encode() for each in (B1, B1, B1, B2, B2)]  # then both hold it


async def test_of_two_that_hold_the_prompt_the_less_loaded_one_is_preferred(queue: Queue) -> None:
    await pool(queue, B1, B2, B3)
    first, second, third = await running(queue, 3)
    await queue.store.assign(first)
    await queue.store.assign(second, exclude=[B1])
    await queue.command("ZADD", queue.keys.pool(POOL), 3, B1, 2, B2, 1, B3)
    assert (await queue.store.assign(third, bound=2))[1] == B2.encode()


async def test_the_preference_is_forgotten_with_its_group(queue: Queue) -> None:
    await queue.finish(await queue.hold(Stage.EVAL))
    await queue.settle()
    await queue.ack_all()
    assert await queue.command("EXISTS", queue.keys.group(group_of(JOB))) == 0


async def test_a_draining_backend_gets_no_new_jobs_and_keeps_its_own(queue: Queue) -> None:
    await pool(queue, B1)
    first, second = await running(queue, 2)
    await queue.store.assign(first)
    await queue.store.leave(POOL, B1, reason="update", drain=True)
    assert await queue.store.assign(second) == [b"none"]
    assert (await queue.store.assign(first))[0] == b"already"


async def test_the_job_of_a_backend_that_has_left_moves(queue: Queue) -> None:
    await pool(queue, B1, B2)
    [held] = await running(queue)
    await queue.store.assign(held)
    await queue.store.leave(POOL, B1, reason="died", drain=False)
    assert (await queue.store.assign(held))[:2] == [b"assigned", B2.encode()]
    await queue.store.release([held])
    assert await queue.load(B2) == 0


async def test_a_backend_that_left_and_came_back_still_counts_the_jobs_that_hold_it(queue: Queue) -> None:
    """A job that names it gives back what it took, and never what came later."""
    await pool(queue, B1, B2)
    first, second = await running(queue, 2)
    await queue.store.assign(first)
    await queue.store.assign(second, bound=0)
    for address in (B1, B2):
        await queue.store.leave(POOL, address, reason="died", drain=False)
    await pool(queue, B1, B2)
    assert [await queue.load(B1), await queue.load(B2)] == [1, 1]
    await queue.store.assign(first, exclude=[B1])
    assert [await queue.load(B1), await queue.load(B2)] == [0, 2]
    await queue.store.release([first, second])
    assert [await queue.load(B1), await queue.load(B2)] == [0, 0]


async def test_a_stale_token_or_a_job_that_is_not_leased_reserves_nothing(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await watch.look()
    assert await queue.store.assign(held._replace(token=Token("1"))) == [b"stale"]
    await watch.nothing_changed()
    await queue.store.release([held])
    await watch.look()
    assert await queue.store.assign(held) == [b"stale"]
    await watch.nothing_changed()


async def test_a_job_that_was_told_to_stop_gets_no_backend(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await cancel(queue.store, "job", held.ref)
    await watch.look()
    assert await queue.store.assign(held) == [b"stale"]
    await watch.nothing_changed()


async def test_an_empty_pool_has_none(queue: Queue, watch: Watch) -> None:
    [held] = await running(queue)
    await watch.look()
    assert await queue.store.assign(held) == [b"none"]
    await watch.nothing_changed()


async def test_a_backend_at_its_limit_is_passed_over(queue: Queue) -> None:
    """The bound holds for reservations, so it cannot be raced past."""
    await queue.store.join(POOL, B1, b"about", limit=1)
    first, second = await running(queue, n=2)
    assert (await queue.store.assign(first))[0] == b"assigned"
    assert await queue.store.assign(second) == [b"none"]
    await queue.store.join(POOL, B2, b"about")
    assert (await queue.store.assign(second))[1] == B2.encode()


async def age(queue: Queue, *addresses: str, ms: int = 60_000) -> None:
    """They joined so long ago."""
    for address in addresses:
        await queue.command("HSET", queue.keys.pool_info(POOL), f"{address}|since", await queue.store.now_ms() - ms)


async def test_a_new_backend_is_not_given_every_next_job(queue: Queue) -> None:
    """It holds at most its age's share of the others' mean, and at least one: here a quarter of eight."""
    await pool(queue, B1, B2, B3)
    await age(queue, B1, B2, ms=200_000)
    await age(queue, B3, ms=25_000)
    await queue.command("ZADD", queue.keys.pool(POOL), 8, B1, 8, B2)
    jobs = await running(queue, 6)
    for held in jobs:
        await queue.store.assign(held, bound=0, ramp_ms=100_000)
    assert await queue.load(B3) == 3  # two, and one more as the mean grew with them
    assert await queue.load(B1) + await queue.load(B2) == 19


async def test_a_new_backend_takes_all_when_no_other_can(queue: Queue) -> None:
    await pool(queue, B1, B2)
    await age(queue, B1)
    await queue.store.leave(POOL, B1, reason="update", drain=True)
    for held in await running(queue, 4):
        assert (await queue.store.assign(held, ramp_ms=100_000))[1] == B2.encode()


async def test_backends_that_are_all_new_share_at_once(queue: Queue) -> None:
    await pool(queue, B1, B2)
    for held in await running(queue, 8):
        await queue.store.assign(held, bound=0, ramp_ms=100_000)
    assert [await queue.load(B1), await queue.load(B2)] == [4, 4]


async def shut(queue: Queue, address: str, *, for_ms: int) -> str:
    text = Breaker(openings=2, until_ms=await queue.store.now_ms() + for_ms).text
    await queue.store.observe(POOL, address, was="", breaker=text)
    return text


async def test_a_backend_that_is_shut_gets_nothing(queue: Queue) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await shut(queue, B1, for_ms=LONGEST_SHUT_MS)
    assert await queue.store.assign(held) == [b"none"]


async def test_a_backend_that_was_shut_while_the_clock_was_ahead_is_tried_again(queue: Queue) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    text = await shut(queue, B1, for_ms=3_600_000)
    assert (await queue.store.assign(held))[0] == b"assigned"
    assert parse(text).state(await queue.store.now_ms()) is BreakerState.HALF_OPEN


async def test_a_backend_that_joined_while_the_clock_was_ahead_gets_its_share(queue: Queue) -> None:
    await pool(queue, B1, B2)
    since_ms = await queue.store.now_ms() + 3_600_000
    await queue.command("HSET", queue.keys.pool_info(POOL), f"{B1}|since", 0, f"{B2}|since", since_ms)
    for held in await running(queue, 8):
        await queue.store.assign(held, bound=0, ramp_ms=100_000)
    assert await queue.load(B2) == 4


async def test_when_its_back_off_is_over_one_job_is_let_through_on_trial(queue: Queue) -> None:
    await pool(queue, B1)
    first, second = await running(queue, 2)
    await shut(queue, B1, for_ms=-1)
    assert (await queue.store.assign(first))[0] == b"assigned"
    assert await queue.store.assign(second) == [b"none"]
    text = (await queue.command("HGET", queue.keys.pool_info(POOL), f"{B1}|breaker")).decode()
    now_ms = await queue.store.now_ms()
    found = parse(text)
    assert (found.openings, found.trial, found.state(now_ms)) == (2, 1, BreakerState.OPEN)
    assert 0 < found.until_ms - now_ms <= TRIAL_MS


@pytest.mark.parametrize(
    ("told", "labels_are_old", "taken"),
    [(None, True, True), ("7", True, True), ("8", False, True), ("6", False, False), ("10", False, True),
     ("default", False, True), ("default", True, False), ("1e9", True, False), ("007", True, True), ("0", True, False),
     ("9" * 5_000, True, False)],
)  # fmt: skip
async def test_a_backend_that_is_behind_gets_no_new_job(
    queue: Queue, told: str | None, labels_are_old: bool, taken: bool
) -> None:
    """Numbers are compared as numbers; a label counts as old only where the service loads the weights itself."""
    await pool(queue, B1)
    [held] = await running(queue)
    await queue.store.observe(POOL, B1, was="", breaker="", facts={"version": told or ""})
    answer = await queue.store.assign(held, floor=7, labels_are_old=labels_are_old)
    assert answer[0] == (b"assigned" if taken else b"none")


@pytest.mark.parametrize(("told", "taken"), [(2**53, False), (2**53 + 1, True), (2**53 + 2, True), (10**18, True)])
async def test_versions_that_no_float_can_hold_are_compared_exactly(queue: Queue, told: int, taken: bool) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await queue.store.observe(POOL, B1, was="", breaker="", facts={"version": f"00{told}"[-19:]})
    answer = await queue.store.assign(held, floor=2**53 + 1)
    assert answer[0] == (b"assigned" if taken else b"none")


async def test_a_backend_whose_weights_are_in_doubt_gets_no_new_job(queue: Queue) -> None:
    await pool(queue, B1)
    [held] = await running(queue)
    await queue.store.observe(POOL, B1, was="", breaker="", facts={"broken": "half loaded"})
    assert await queue.store.assign(held) == [b"none"]
    await queue.store.observe(POOL, B1, was="", breaker="", facts={"broken": ""})
    assert (await queue.store.assign(held))[0] == b"assigned"


async def test_a_job_moves_to_the_named_backend_and_a_repeat_keeps_that(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2, B3)
    [held] = await running(queue)
    await queue.store.assign(held)
    await queue.command("ZADD", queue.keys.pool(POOL), 5, B2)
    await watch.look()
    assert (await queue.store.assign(held, to=B2))[:2] == [b"assigned", B2.encode()]
    assert await watch.changes() == {
        f"{J} backend": f"{B1} → {B2}",
        f"{J} line": f"… assign init T1 w1 {B2};",
        f"pool:policy {B1}": "1 → 0",
        f"pool:policy {B2}": "5 → 6",
        f"{G} warm": f" {B1}  →  {B1} {B2} ",
    }
    assert (await queue.store.assign(held, to=B2))[:2] == [b"already", B2.encode()]
    await watch.nothing_changed()


async def test_a_job_keeps_its_backend_where_the_named_one_may_not_be_taken(queue: Queue, watch: Watch) -> None:
    await pool(queue, B1, B2, B3)
    first, second = await running(queue, 2)
    await queue.store.assign(first)
    await queue.store.assign(second, exclude=[B1])
    await queue.store.join(POOL, B2, B2.encode(), limit=1)
    await watch.look()
    assert (await queue.store.assign(first, to=B2))[:2] == [b"already", B1.encode()]
    assert (await queue.store.assign(first, to="http://gone"))[:2] == [b"already", B1.encode()]
    await watch.nothing_changed()
    assert (await queue.store.assign(first, exclude=[B1], to=B2))[:2] == [b"assigned", B3.encode()]
