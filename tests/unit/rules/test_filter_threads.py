"""Filters that hang take few threads, all of them their own tenant's."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from prorl_mq.rules import filter_threads, filters
from prorl_mq.rules.filter_threads import FilterBusy, FilterHangs, FilterThreads
from prorl_mq.rules.filters import Candidate, FilterFailed
from prorl_mq.schema.dapo import Predicate

pytestmark = pytest.mark.anyio
CANDIDATE = Candidate(task_id="t", data_source="d", rewards=[], samples=[])
SOON_S, LATE_S = 0.02, 60.0


@pytest.fixture
def returning() -> Iterator[threading.Event]:
    """What hangs returns when it is set."""
    event = threading.Event()
    yield event
    event.set()


async def hang(threads: FilterThreads, tenant: str, event: threading.Event, times: int) -> None:
    for _ in range(times):
        with pytest.raises(FilterHangs):
            await threads.call(tenant, lambda: event.wait(LATE_S), name="hangs", within_s=SOON_S)


async def answered(threads: FilterThreads, tenant: str) -> str:
    return await threads.call(tenant, lambda: "judged", name="returns", within_s=LATE_S)


async def free_again(threads: FilterThreads) -> None:
    async with asyncio.timeout(20):
        while threads._tenants or threads._hung:
            await asyncio.sleep(0.001)


async def test_what_hangs_for_one_tenant_leaves_the_threads_of_the_others(returning: threading.Event) -> None:
    threads = FilterThreads()
    await hang(threads, "acme", returning, filter_threads.EACH)
    with pytest.raises(FilterBusy, match="filters of tenant 'acme' hang in all threads"):
        await answered(threads, "acme")
    assert await answered(threads, "globex") == "judged"
    returning.set()
    await free_again(threads)
    assert await answered(threads, "acme") == "judged"


async def test_all_tenants_together_take_a_bounded_number_of_threads(returning: threading.Event) -> None:
    threads = FilterThreads()
    tenants = [f"t{number}" for number in range(filter_threads.ALL // filter_threads.EACH)]
    await asyncio.gather(*(hang(threads, tenant, returning, filter_threads.EACH) for tenant in tenants))
    assert len(threads._hung) == filter_threads.ALL
    with pytest.raises(FilterBusy):
        await answered(threads, "another")


async def test_calls_that_return_are_waited_for_and_none_is_refused() -> None:
    """More of a tenant's runs than it may have threads: each of them gets its turn."""
    threads, at_once, most, lock = FilterThreads(), Counter[str](), Counter[str](), threading.Lock()

    def work() -> str:
        with lock:
            at_once["now"] += 1
            most["now"] = max(most["now"], at_once["now"])
        with lock:
            at_once["now"] -= 1
        return "judged"

    calls = (threads.call("acme", work, name="short", within_s=LATE_S) for _ in range(100))
    assert await asyncio.gather(*calls) == ["judged"] * 100
    assert most["now"] <= filter_threads.EACH
    assert not threads._tenants


async def test_a_call_that_waits_behind_others_is_refused_once_all_of_them_hang(returning: threading.Event) -> None:
    threads = FilterThreads()
    hanging = [asyncio.create_task(hang(threads, "acme", returning, 1)) for _ in range(filter_threads.EACH)]
    await asyncio.sleep(0)
    with pytest.raises(FilterBusy):
        await answered(threads, "acme")
    await asyncio.gather(*hanging)


async def test_a_caller_that_is_cancelled_gives_its_thread_back_when_the_call_returns(
    returning: threading.Event,
) -> None:
    threads = FilterThreads()
    call = asyncio.create_task(threads.call("acme", lambda: returning.wait(LATE_S), name="hangs", within_s=LATE_S))
    await asyncio.sleep(0)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert len(threads._hung) == 1
    returning.set()
    await free_again(threads)


async def test_a_process_without_another_thread_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    threads = FilterThreads()
    with pytest.raises(FilterBusy, match="can't start new thread"):
        await answered(threads, "acme")
    assert not threads._tenants


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TimeoutError("no answer"), "raised TimeoutError: no answer"),
        (StopIteration(), "raised RuntimeError: "),
        (SystemExit(3), "raised RuntimeError: SystemExit: 3"),
    ],
    ids=repr,
)
async def test_whatever_a_filter_raises_is_its_own_failure(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, says: str
) -> None:
    """None of them is taken for a call that hangs, and none ends the process."""

    def raising(_candidate: Candidate, _options: object) -> bool:
        raise error

    monkeypatch.setattr(filters, "_load", lambda _name: raising)
    monkeypatch.setattr(filters, "_threads", threads := FilterThreads())
    with pytest.raises(FilterFailed, match=says):
        await filters.judge(Predicate(name="raises"), CANDIDATE, tenant="acme")
    assert not threads._tenants


async def test_a_filter_that_hangs_fails_the_group_that_made_it_hang(
    monkeypatch: pytest.MonkeyPatch, returning: threading.Event
) -> None:
    def hanging(_candidate: Candidate, _options: object) -> bool:
        return returning.wait(LATE_S)

    monkeypatch.setattr(filters, "PATIENCE_S", SOON_S)
    monkeypatch.setattr(filters, "_load", lambda _name: hanging)
    monkeypatch.setattr(filters, "_threads", FilterThreads())
    with pytest.raises(FilterFailed, match="the filter 'slow' took longer than"):
        await filters.judge(Predicate(name="slow"), CANDIDATE, tenant="acme")
