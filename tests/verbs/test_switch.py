"""switch: a namespace without jobs in flight is given to releases of another protocol, and stays theirs."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest

from prorl_mq.cli.local import upgrade
from prorl_mq.cli.local.upgrade import Hold, refusal
from prorl_mq.duties.duty import Duty
from prorl_mq.errors import ConfigurationError, ProrlError, ServerUnfit
from prorl_mq.schema.messages import Stage
from prorl_mq.store import gauges
from prorl_mq.store.gauges import Gauges
from prorl_mq.store.store import ADMIT, Store
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio


async def epoch(queue: Queue, *fields: str) -> list[bytes | None]:
    found: list[bytes | None] = await queue.command("HMGET", queue.keys.epoch, *fields)
    return found


async def test_an_empty_namespace_is_switched_and_its_processes_are_fenced(queue: Queue) -> None:
    """The backlog and an open epoch are there before; the old release is refused, though nothing is in flight."""
    ref = await queue.submit()
    wanted = await queue.wanted(ref)
    await queue.store.hold(ADMIT, lease_ms=60_000)
    assert await queue.store.switch(seen="2", to="3") == "switched"
    assert await epoch(queue, "protocol", "chosen", "server") == [b"3", b"3", b""]
    for old in (queue, queue.worker("new")):
        with pytest.raises(ServerUnfit, match=r"speaks protocol 3, this release 2, .*`prorl-mq upgrade` has chosen"):
            await old.store.admit(RUN, [wanted])
    newer = queue.worker("newer")
    newer.store.protocol = "3"
    assert await newer.store.admit(RUN, [wanted]) == [1]


async def test_what_was_not_chosen_is_taken_over_as_ever(queue: Queue) -> None:
    """The control of the one above: without the choice the old release would take the namespace back."""
    await queue.store.hold(ADMIT, lease_ms=60_000)
    await queue.store.switch(seen="2", to="3")
    await queue.command("HDEL", queue.keys.epoch, "chosen")
    await queue.worker("new").store.open_epoch()
    assert await epoch(queue, "protocol") == [b"2"]


async def test_nothing_is_switched_while_a_job_is_in_flight_or_without_the_duty(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await queue.store.switch(seen="2", to="3") == "not held"
    assert await queue.store.switch(seen="1", to="3") == "moved"
    await watch.nothing_changed()
    await queue.admitted()
    await queue.store.hold(ADMIT, lease_ms=60_000)
    await watch.look()
    assert await queue.store.switch(seen="2", to="3") == "in flight"
    await watch.nothing_changed()


@pytest.mark.parametrize(
    ("seen", "to", "speaks", "why"),
    [
        ("2", "3", "3", ""),
        ("3", "2", "3", ""),
        ("3", "1", "3", "can go back to 2 at most"),
        ("2", "3", "2", "of a release that speaks 3"),
        ("3", "2", "2", "of a release that speaks 3"),
        ("9", "10", "9", "of a release that speaks 10"),
    ],
)
def test_the_newer_of_two_releases_says_what_is_allowed(seen: str, to: str, speaks: str, why: str) -> None:
    said = refusal(seen, to, speaks=speaks, least="2")
    assert bool(said) is bool(why)
    assert why in said
    assert not said or said.startswith(f"from protocol {seen} to {to}: ")


class Service:
    """A living API process that admits one group at a turn, and a worker."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.api = queue.worker("api")
        self.turns = 0

    async def admit(self) -> float:
        self.turns += 1
        [ref, *_] = await self.queue.command("ZRANGE", self.queue.keys.backlog(RUN), 0, 0)
        await self.api.store.admit(RUN, [await self.queue.wanted(ref.decode())])
        return 0.005

    async def work(self) -> None:
        while True:
            for held in await self.queue.take(Stage.INIT):
                await self.queue.finish(held)
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def serving(queue: Queue, *, works: bool = True) -> AsyncIterator[Service]:
    for name in range(200):
        await queue.submit(f"g{name}", batch=f"b{name}")
    service = Service(queue)
    tasks = [asyncio.create_task(Duty(service.api.store, ADMIT, service.admit).run())]
    tasks += [asyncio.create_task(service.work())] if works else []
    try:
        while not service.turns:
            await asyncio.sleep(0.01)
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_admission_is_held_the_stages_are_emptied_and_the_backlog_waits(queue: Queue) -> None:
    said: list[str] = []
    ours = queue.worker("upgrade").store
    ours.protocol = "3"
    async with serving(queue):
        await upgrade.upgrade(ours, "3", say=said.append)
        assert await queue.command("ZCARD", queue.keys.backlog(RUN)) > 0
        assert not await queue.command("EXISTS", queue.keys.in_flight)
    assert await epoch(queue, "protocol", "chosen") == [b"3", b"3"]
    assert "switched from protocol 2 to 3" in said[-1]


async def test_without_the_hold_the_namespace_is_not_switched(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: another process still admits."""

    async def nothing(_: Hold) -> None:
        """Holds nothing."""

    monkeypatch.setattr(Hold, "take", nothing)
    monkeypatch.setattr(Hold, "keep", nothing)
    ours = queue.worker("upgrade").store
    ours.protocol = "3"
    async with serving(queue) as service:
        before = service.turns
        with pytest.raises(ProrlError, match="not switched: not held"):
            await upgrade.upgrade(ours, "3", say=lambda _: None)
        while service.turns == before:
            await asyncio.sleep(0.01)
    assert await epoch(queue, "protocol") == [b"2"]


@pytest.mark.parametrize("beside", [True, False])
async def test_a_look_that_takes_longer_than_the_lease_loses_no_admission(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """As on a busy machine. The control: a hold that is renewed between looks alone is gone when one is over."""
    real, other = gauges.read, queue.worker("other").store

    async def slow(store: Store) -> Gauges:
        await asyncio.sleep(0.6)
        await other.hold(ADMIT, lease_ms=60_000)
        return await real(store)

    async def never(_: Hold) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(upgrade, "LEASE_MS", 300)
    monkeypatch.setattr(upgrade, "LOOK_S", 0.05)
    monkeypatch.setattr(gauges, "read", slow)
    if not beside:
        monkeypatch.setattr(Hold, "keeping", never)
    ours = queue.worker("upgrade").store
    ours.protocol = "3"
    async with serving(queue):
        if beside:
            await upgrade.upgrade(ours, "3", say=lambda _: None)
        else:
            with pytest.raises(ProrlError, match="admission was lost: for"):
                await upgrade.upgrade(ours, "3", say=lambda _: None)
    assert await epoch(queue, "protocol") == [b"3" if beside else b"2"]


async def test_stages_that_do_not_empty_are_named_until_the_operator_gives_up(queue: Queue) -> None:
    said: list[str] = []
    ours = queue.worker("upgrade").store
    ours.protocol = "3"
    async with serving(queue, works=False):
        task = asyncio.create_task(upgrade.upgrade(ours, "3", say=said.append))
        while not any(text.startswith("in flight: ") for text in said):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert re.fullmatch(r"in flight: \d+ jobs; init: no worker is alive", said[-1])
    assert await epoch(queue, "protocol", "chosen") == [b"2", None]
    assert not await held_by(queue, "upgrade")


async def held_by(queue: Queue, name: str) -> bool:
    holder: bytes = await queue.command("GET", queue.keys.duty(ADMIT)) or b""
    return holder.startswith(name.encode())


async def test_a_refused_protocol_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await watch.look()
    for to, why in (("1", "can go back to 2 at most"), ("3", "of a release that speaks 3")):
        with pytest.raises(ConfigurationError, match=why):
            await upgrade.upgrade(queue.store, to, say=lambda _: None)
    said: list[str] = []
    await upgrade.upgrade(queue.store, "2", say=said.append)
    assert "replace its processes one by one" in said[0]
    await watch.nothing_changed()
    assert (await queue.snapshot(JOB)).token


async def test_without_a_protocol_it_holds_until_it_is_interrupted(queue: Queue) -> None:
    said: list[str] = []
    task = asyncio.create_task(upgrade.upgrade(queue.worker("upgrade").store, None, say=said.append))
    while not any("Ctrl-C" in text for text in said):
        await asyncio.sleep(0.01)
    assert await held_by(queue, "upgrade")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await held_by(queue, "upgrade")
    assert await epoch(queue, "chosen") == [None]
