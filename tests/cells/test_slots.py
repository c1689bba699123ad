"""A namespace in a slot of a real cluster: followed where it moves, and not written where it may be split."""

import asyncio

import pytest
from redis.exceptions import ResponseError

from prorl_mq.errors import RedisUnavailable, ServerUnfit
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.rendezvous import Place
from prorl_mq.service.fsck.look import look
from prorl_mq.store import core
from prorl_mq.store.scripts import Script, script
from prorl_mq.store.server import connection, fitness, primary, replicas
from prorl_mq.store.server.connection import RedisSettings, ask, connect, patiently
from tests.cells.stand import SECRET, Cluster
from tests.ha.stand import Writers
from tests.ha.test_service import refused
from tests.support.queue import Queue

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]


async def test_nothing_is_lost_or_doubled_while_the_slot_moves(here: Cluster, queue: Queue) -> None:
    namespace = queue.keys.namespace
    writers = Writers(here.settings(namespace), queue)
    async with writers.writing():
        await writers.more(50)
        for _ in range(3):
            await here.move(namespace)
            await writers.more(50)
    assert await writers.lost() == set()
    assert await writers.repeated() == {"already"}
    assert not (await look(queue.store, still=True)).violations


async def test_a_reader_that_is_blocked_while_the_slot_moves_gets_what_comes_afterwards(
    here: Cluster, queue: Queue
) -> None:
    await queue.prepare()
    reading = asyncio.create_task(
        queue.store.wait_read("XREAD", "BLOCK", 20_000, "STREAMS", queue.keys.stage(Stage.INIT), "0-0")
    )
    await asyncio.sleep(0.1)
    await here.move(queue.keys.namespace)
    assert not reading.done()
    [job] = await queue.admitted()
    [[_, [[_, fields]]]] = await reading
    assert job.encode() in fields


@pytest.mark.parametrize("followed", [True, False])
async def test_the_owner_that_a_fail_over_makes_is_followed(
    here: Cluster, queue: Queue, monkeypatch: pytest.MonkeyPatch, followed: bool
) -> None:
    """The control: a client that takes MOVED for an answer ends."""
    if not followed:
        monkeypatch.setattr(connection, "PASSING", connection.PASSING - {"MOVED"})
    await queue.submit("before")
    namespace = queue.keys.namespace
    await here.fail_over(namespace)
    if followed:
        assert await queue.submit("after", batch="b2")
        return
    with pytest.raises(ResponseError):
        await queue.submit("after", batch="b2")


@pytest.mark.parametrize("guarded", [True, False])
async def test_no_epoch_opens_while_the_slot_is_moved_key_by_key(
    here: Cluster, queue: Queue, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """All keys that the opening names are still there. The control: a script without the check opens one."""
    if not guarded:
        whole = script("open_epoch")
        text = whole.text.replace("cluster_enabled:1", "cluster_enabled:never")
        assert text != whole.text
        monkeypatch.setattr(core, "script", lambda name: Script(name, text) if name == whole.name else script(name))
    await queue.admitted()
    places = await here.move_key_by_key(queue.keys.namespace)
    try:
        queue.store.outage_ms = 300
        if guarded:
            with pytest.raises(RedisUnavailable, match=r"moves key by key.*MIGRATESLOTS"):
                await queue.store.open_epoch()
        else:
            assert await queue.store.open_epoch()
    finally:
        await here.move_no_more(queue.keys.namespace, places)
    queue.store.outage_ms = 5_000
    assert await queue.store.open_epoch()


async def hold(queue: Queue) -> str:
    """A script all of whose keys are there from its second call on."""
    return await queue.store.hold("duty", lease_ms=60_000, beat=1, seen="")


@pytest.mark.parametrize("kept", [True, False])
async def test_a_namespace_that_is_moved_key_by_key_is_closed_until_that_has_ended(
    here: Cluster, queue: Queue, kept: bool
) -> None:
    """The control: without the duty's look, scripts whose keys are still there write."""
    await queue.admitted()
    assert await hold(queue) == "held"
    before = await queue.store.open_epoch()
    places = await here.move_key_by_key(queue.keys.namespace)
    try:
        queue.store.outage_ms = 300
        if kept:
            await replicas.turn(queue.store, here.settings(queue.keys.namespace))
            with pytest.raises(RedisUnavailable, match="moves key by key"):
                await hold(queue)
        else:
            assert await hold(queue) == "held"
    finally:
        await here.move_no_more(queue.keys.namespace, places)
    queue.store.outage_ms = 5_000
    await replicas.turn(queue.store, here.settings(queue.keys.namespace))
    assert await queue.submit("after", batch="b2")
    assert (queue.store.epoch != before) is kept


async def test_a_node_that_is_named_alone_is_refused_with_the_address_to_give(here: Cluster, queue: Queue) -> None:
    node = here.nodes[0]
    plain = connect(RedisSettings(url=f"redis://{node.host}:{node.port}", password=SECRET))
    try:
        with pytest.raises(ServerUnfit, match=r"redis\+cluster://HOST:PORT"):
            await fitness.start_up(plain)
        [_, elsewhere] = here.namespaces(2)
        with pytest.raises(RedisUnavailable, match=r"a node of a cluster: give redis\+cluster://"):
            await patiently(lambda: ask(plain, "GET", f"{{{elsewhere}}}:epoch"), outage_ms=0)
    finally:
        await plain.aclose()
    assert await fitness.start_up(queue.redis) == []


async def test_replicated_mode_is_refused_where_replicas_form_no_chain(here: Cluster) -> None:
    said = await refused(here.settings("any").url, PRORL_REDIS_PASSWORD=SECRET)
    assert b"--durability replicated is refused: replicas of a cluster form no chain" in said


async def test_connections_that_want_the_owner_at_a_time_share_one_look(
    here: Cluster, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look asks every node: a process that had sixteen of them at once got answers too late."""
    looks, usual = list[str](), primary.of

    async def counted(place: Place, namespace: str) -> Place:
        looks.append(namespace)
        return await usual(place, namespace)

    monkeypatch.setattr(primary, "of", counted)
    await asyncio.gather(*(queue.command("GET", queue.keys.mark) for _ in range(16)))
    assert len(looks) == 1
