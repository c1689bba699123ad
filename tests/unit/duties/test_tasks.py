"""Tasks of a duty by their keys."""

import asyncio

import pytest

from prorl_mq.duties.tasks import Tasks

pytestmark = pytest.mark.anyio


async def returned(order: list[str], name: str) -> None:
    order.append(name)


async def test_a_wait_ends_with_its_own_keys_and_takes_out_all_that_are_done() -> None:
    tasks, order = Tasks[str](), list[str]()
    tasks.start("hangs", asyncio.sleep(3600))
    tasks.start("first", returned(order, "first"))
    tasks.start("second", returned(order, "second"))
    await tasks.wait(within_s=3600, of=["first", "second"])
    assert (order, [key in tasks for key in ("hangs", "first", "second")]) == (
        ["first", "second"],
        [True, False, False],
    )
    await tasks.cancel()


async def test_a_wait_for_all_is_over_in_time() -> None:
    tasks = Tasks[str]()
    tasks.start("hangs", asyncio.sleep(3600))
    await tasks.wait(within_s=0.0)
    assert "hangs" in tasks
    await tasks.cancel()
    assert not tasks


async def test_what_a_task_raises_is_raised_once_and_frees_its_key() -> None:
    async def fails() -> None:
        raise ValueError("no such pool")

    tasks = Tasks[str]()
    tasks.start("a", fails())
    with pytest.raises(ValueError, match="no such pool"):
        await tasks.wait(within_s=3600)
    tasks.end()
    assert not tasks


async def test_a_cancel_lets_every_task_end_first() -> None:
    ended = list[str]()

    async def works(key: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(key)

    tasks = Tasks[str]()
    for key in ("a", "b"):
        tasks.start(key, works(key))
    await asyncio.sleep(0)
    await tasks.cancel()
    assert (ended, bool(tasks)) == (["a", "b"], False)
