"""Results that a trainer acknowledges on the stream itself are deleted, each by itself and only then."""

from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ResponseError

from prorl_mq.client.following import Following
from prorl_mq.client.redis import RedisDoor
from prorl_mq.client.repeats import Repeats
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.duties.sweep import Janitor
from prorl_mq.errors import OverQuota
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import TenantId, batch_ref, run_ref
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Stage, Task, Verdict
from prorl_mq.schema.settings import RunSettings, TenantSettings
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import submit
from prorl_mq.store import run_settings, runs, work
from prorl_mq.store.direct import consumers
from prorl_mq.store.direct.consumers import Delivered
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.results import acknowledge
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.epoch import another_server
from tests.support.queue import RUN, Queue

pytestmark = pytest.mark.anyio


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    client = connect(settings)
    made = Queue(client, keys)
    await made.prepare("n1")
    yield made
    await client.aclose()


@pytest.fixture
async def door(settings: RedisSettings) -> AsyncIterator[RedisDoor]:
    made = RedisDoor(settings, tenant="acme")
    yield made
    await made.aclose()


async def published(queue: Queue, *names: str) -> list[str]:
    """Groups with these names have closed: the cursors of their results."""
    for name in names:
        await queue.admitted(name, batch=name)
    for held in await queue.take(Stage.INIT, count=100):
        await queue.finish(held)
    await queue.settle()
    return [result.cursor for result in await queue.results()]


async def read_all(queue: Queue) -> None:
    """As a trainer does that reads with a consumer group."""
    await consumers.create(queue.store, RUN)
    await queue.command("XREADGROUP", "GROUP", TRAINERS, "me", "STREAMS", queue.keys.results(RUN), ">")


async def cursors(queue: Queue) -> list[str]:
    return [result.cursor for result in await queue.results()]


async def test_one_result_that_waits_keeps_none_of_the_others(queue: Queue) -> None:
    """Also where they are acknowledged turn by turn, newest first, and where the one is not the first."""
    found = await published(queue, "a", "b", "c", "d")
    await read_all(queue)
    sweep = Janitor(queue.store, lease_ms=1_000)
    for acknowledged, left in (([3], [0, 1, 2]), ([0, 2], [1]), ([1], [])):
        await queue.command("XACK", queue.keys.results(RUN), TRAINERS, *(found[place] for place in acknowledged))
        await sweep.turn()
        assert await cursors(queue) == [found[place] for place in left]
    assert await queue.command("HGET", queue.keys.run(RUN), "bytes") == b"0"


@pytest.mark.parametrize("earlier_release", [True, False])
async def test_a_trainer_that_wants_new_results_alone_loses_none_that_it_has_not_read(
    queue: Queue, earlier_release: bool
) -> None:
    """A group at `$` would look as if it had been given, and had acknowledged, all that lies before."""
    found, stream = await published(queue, "a", "b"), queue.keys.results(RUN)
    sweep = Janitor(queue.store, lease_ms=1_000)
    if earlier_release:
        await queue.command("XGROUP", "DESTROY", stream, TRAINERS)
        await sweep.turn()
    with pytest.raises(ResponseError, match="BUSYGROUP"):
        await queue.command("XGROUP", "CREATE", stream, TRAINERS, "$")
    await sweep.turn()
    assert await cursors(queue) == found
    [(_, entries)] = await queue.command("XREADGROUP", "GROUP", TRAINERS, "me", "STREAMS", stream, ">")
    assert [entry.decode() for entry, _ in entries] == found
    await sweep.turn()
    assert await cursors(queue) == found
    await queue.command("XACK", stream, TRAINERS, found[0])
    await sweep.turn()
    assert await cursors(queue) == found[1:]


async def test_what_a_group_at_the_end_passes_over_would_be_swept(queue: Queue) -> None:
    """The control of the test above: nothing else tells such a group from one that has read everything."""
    await published(queue, "a", "b")
    stream = queue.keys.results(RUN)
    await queue.command("XGROUP", "DESTROY", stream, TRAINERS)
    await queue.command("XGROUP", "CREATE", stream, TRAINERS, "$")
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == []


async def test_an_answer_is_given_to_the_group_too_and_an_emptied_stream_keeps_it(queue: Queue) -> None:
    stream = queue.keys.results(RUN)
    entry = await queue.command("XADD", queue.keys.intake(RUN), "*", "m", "a message")
    await queue.command("XGROUP", "CREATE", stream, "another", "0", "MKSTREAM")  # the stream is there, the group is not
    await queue.store.answer(RUN, entry.decode(), b"an answer")
    assert await consumers.delivered(queue.store, RUN) == Delivered("0-0", 0)
    found = await published(queue, "a")
    await read_all(queue)
    await queue.command("XACK", stream, TRAINERS, *found)
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == []
    later = await published(queue, "b")
    assert await queue.command("XLEN", stream) == 2
    await read_all(queue)
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == later


async def test_what_was_not_delivered_is_never_swept(queue: Queue) -> None:
    found = await published(queue, "a", "b")
    await read_all(queue)
    late = (await published(queue, "c"))[-1]
    await queue.command("XACK", queue.keys.results(RUN), TRAINERS, *found)
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == [late]


async def test_a_process_that_takes_the_sweep_over_finds_what_another_left(queue: Queue) -> None:
    found = await published(queue, "a", "b", "c")
    await read_all(queue)
    await Janitor(queue.store, lease_ms=1_000).turn()
    await queue.command("XACK", queue.keys.results(RUN), TRAINERS, found[1])
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == [found[0], found[2]]


async def test_what_a_lost_second_took_from_the_consumer_group_is_not_taken_for_acknowledged(queue: Queue) -> None:
    """The group was given everything, and after the restart of Redis nothing: the trainer reads all of it again."""
    found = await published(queue, "a", "b")
    await read_all(queue)
    sweep = Janitor(queue.store, lease_ms=1_000)
    await sweep.turn()
    stream = queue.keys.results(RUN)
    await queue.command("XGROUP", "DESTROY", stream, TRAINERS)
    await queue.command("XGROUP", "CREATE", stream, TRAINERS, "0")
    await queue.command("XREADGROUP", "GROUP", TRAINERS, "me", "COUNT", 1, "STREAMS", stream, ">")
    await sweep.turn()
    assert await cursors(queue) == found


async def test_a_deletion_that_a_restart_has_lost_is_repeated(queue: Queue) -> None:
    """The acknowledgement was on disk, the deletion in the second that was lost. Another epoch says so."""
    found = await published(queue, "a", "b")
    await read_all(queue)
    stream, sweep = queue.keys.results(RUN), Janitor(queue.store, lease_ms=1_000)
    await queue.command("XACK", stream, TRAINERS, found[0])
    acknowledged = await queue.command("DUMP", stream)
    await sweep.turn()
    await queue.command("RESTORE", stream, 0, acknowledged, "REPLACE")
    await sweep.turn()
    assert await cursors(queue) == found  # the control: nothing says that the server was another one
    await another_server(queue)
    await queue.store.open_epoch()
    await sweep.turn()
    assert await cursors(queue) == found[1:]


async def test_an_acknowledgement_by_cursor_leaves_nothing_pending(queue: Queue) -> None:
    """It was delivered to the consumer group before: an entry of nil stayed with it."""
    found = await published(queue, "a", "b")
    await read_all(queue)
    assert await acknowledge(queue.store, RUN, found) == 2
    state = await consumers.state(queue.store, RUN)
    assert state is not None
    assert state[1] == []


async def test_old_answers_are_deleted_however_many_results_lie_before_them(queue: Queue) -> None:
    for _ in range(300):
        await queue.command("XADD", queue.keys.results(RUN), "*", "r", "a result")
    await queue.store.configure(RUN, b"{}")
    entry = await queue.command("XADD", queue.keys.intake(RUN), "*", "m", "a message")
    await queue.store.answer(RUN, entry.decode(), b"an answer")
    await queue.command(
        "ZADD", queue.keys.answers(RUN), "XX", 1, *await queue.command("ZRANGE", queue.keys.answers(RUN), 0, -1)
    )
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await queue.command("XLEN", queue.keys.results(RUN)) == 300
    assert await queue.command("EXISTS", queue.keys.answers(RUN)) == 0


async def test_results_are_readable_however_long_nobody_comes_for_them(queue: Queue, door: RedisDoor) -> None:
    """The run's key had a TTL of a week, and its results answered 404 after it."""
    await published(queue, "a")
    assert await queue.command("PTTL", queue.keys.run(RUN)) == -1
    await queue.command("ZADD", queue.keys.runs, 1, RUN)
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert len(await door.page("r", "0", 0.0)) == 1


async def test_a_forged_record_deletes_no_key_of_another_run(queue: Queue) -> None:
    """Whoever writes to a result stream names any key in a record."""
    await queue.admitted("g", batch="b")
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held, trajectory=queue.keys.due, trajectory_bytes=1)
    await queue.settle()
    assert await queue.ack_all() == 1
    assert await queue.command("EXISTS", queue.keys.due) == 1


async def test_the_door_acknowledges_what_it_read_by_cursor_and_shows_it_no_more(queue: Queue, door: RedisDoor) -> None:
    found = await published(queue, "a", "b", "c")
    assert await door.ack("r", [found[1]]) == 1
    assert [closed.cursor for closed in await door.page("r", "0", 0.0)] == [found[0], found[2]]
    assert await door.ack("r", found) == 2
    assert await door.page("r", "0", 0.0) == []
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == []


@pytest.mark.parametrize("first_is_acknowledged", [True, False])
async def test_a_result_that_came_again_is_acknowledged_with_the_first(
    queue: Queue, door: RedisDoor, first_is_acknowledged: bool
) -> None:
    """Redis has lost its last second, and the group was published again: the iterator shows it once."""
    repeats = Repeats()
    following = Following(door, "r", None, repeats)
    record = encode(GroupRecord(
        run_id="r", batch_id="b", group_id="g", task_id="t", data_source="s", verdict=Verdict.ACCEPTED, n=1, samples=[],
        timelines={},
    ))  # fmt: skip
    await queue.store.configure(RUN, b"{}")
    stream = queue.keys.results(RUN)
    lost = (await queue.command("XADD", stream, "1-1", "r", record)).decode()
    [shown] = await following._page(0.0)
    await queue.command("XDEL", stream, lost)
    if first_is_acknowledged:
        repeats.acknowledged("r", [lost])
    again = (await queue.command("XADD", stream, "2-1", "r", record)).decode()
    assert await following._page(0.0) == []
    if not first_is_acknowledged:
        assert repeats.with_repeats("r", [shown.cursor]) == [lost, again]
        await door.ack("r", [lost, again])
    assert isinstance(shown, ClosedGroup)
    assert await door.page("r", "0", 0.0) == []


@pytest.mark.parametrize("whose", ["run", "tenant"])
async def test_what_nobody_acknowledges_keeps_batches_out_until_somebody_does(queue: Queue, whose: str) -> None:
    """The limit of the run, or that of its tenant, in another run, is passed: refused before anything is stored."""
    await work.enroll(queue.store, {"sums": Schema()}, None)
    tenant, run_id = RUN.split(":")
    group = GroupRequest(task=Task(task_id="t", data_source="sums"))
    request = BatchRequest(run_id=run_id if whose == "run" else "other", batch_id="late", groups=[group])
    cursors = await published(queue, "g")
    if whose == "run":
        await runs.configure(queue.store, RUN, RunSettings(max_unacked_bytes=1))
    else:
        await run_settings.set_tenant(queue.store, TenantId(tenant), TenantSettings(max_unacked_bytes=1))
    with pytest.raises(OverQuota, match=r"nobody has acknowledged|all runs of its tenant"):
        await submit.accept(queue.store, tenant, request)
    assert await queue.command("EXISTS", queue.keys.batch(batch_ref(run_ref(tenant, request.run_id), "late"))) == 0
    await acknowledge(queue.store, RUN, cursors)
    assert not (await submit.accept(queue.store, tenant, request)).repeated


@pytest.mark.parametrize(
    ("most", "left", "said"),
    [(2, 0, "begins again"), (3, 3, "those that held nothing were ended"), (1_024, 5, "")],
    ids=["all hold something", "some hold nothing", "control"],
)
async def test_too_many_consumers_end_and_what_is_not_acknowledged_is_not_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, most: int, left: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant's Redis user makes one by any name that it reads under. It is given again what those held that had to
    end with their group, and nothing where it was enough to end those that held nothing.
    """
    monkeypatch.setattr(consumers, "CONSUMERS", most)
    stream, found = queue.keys.results(RUN), await published(queue, "a", "b", "c", "d", "e", "f")
    await consumers.create(queue.store, RUN)
    for number in range(5):
        words = ("GROUP", TRAINERS, f"c{number}", "COUNT", 1, "STREAMS", stream, ">")
        await queue.command("XREADGROUP", *words)
    await queue.command("XACK", stream, TRAINERS, found[0], found[3])
    await Janitor(queue.store, lease_ms=1_000).turn()
    given = await consumers.delivered(queue.store, RUN)
    assert given is not None
    assert given.consumers == left
    assert [said in each.getMessage() for each in caplog.records] == [True] * bool(said)
    unacknowledged = [each for each in found if each not in {found[0], found[3]}]
    assert await cursors(queue) == unacknowledged
    read = await queue.command("XREADGROUP", "GROUP", TRAINERS, "me", "STREAMS", stream, ">")
    assert [entry.decode() for entry, _ in read[0][1]] == (unacknowledged if left == 0 else found[5:])
    await queue.command("XACK", stream, TRAINERS, *unacknowledged)
    await Janitor(queue.store, lease_ms=1_000).turn()
    assert await cursors(queue) == []
