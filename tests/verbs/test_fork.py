"""fork: a group is stored whose jobs begin with turns of another job."""

import pytest

from prorl_mq.errors import OverQuota
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import GroupRef, JobRef, batch_ref, group_ref
from prorl_mq.schema.items import NewBatch, NewFork, NewGroup
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.schema.turns import SCHEMA, Inherited
from tests.support.queue import RUN, Queue, spec
from tests.support.watch import Watch
from tests.verbs.lost import Act, case
from tests.verbs.places import GROUP, JOB, J

pytestmark = pytest.mark.anyio
MADE, BATCH = group_ref(RUN, "tree"), batch_ref(RUN, "tree")
BASE = encode(Inherited(SCHEMA, "r:g:0", 1, [b"C0", b"R0", b"C1", b"R1"], None))
FILE = "file:70000:" + "ab" * 20


async def fork(
    queue: Queue, *, n: int = 2, digest: str = "of the order", sealed: bytes | None = None, file: str = "",
    lender: str = "", priority: int = 0,
) -> str:  # fmt: skip
    told = spec("tree", n=n, fork=ForkedFrom(job_id="r:g:0", turn=1))
    batch = NewBatch(RUN, BATCH, digest, 1, n, told.purpose, priority)
    group = NewGroup(MADE, digest, n, told.limits.total_ms, encode(told), sealed or b"", told.data_source)
    begins = NewFork(BASE, JOB, b"", file, lender or queue.keys.job(JOB), GROUP if sealed is None else None)
    return await queue.store.fork(batch, group, begins)


async def test_a_group_is_stored_with_its_turns_and_the_sealed_part_of_its_parent(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await watch.look()
    assert await fork(queue) == "forked"
    group = f"group:{MADE}"
    assert await watch.changes() == {
        f"+ batch:{BATCH}": "hash",
        f"+ batch:{BATCH} at": "<ms>",
        f"+ batch:{BATCH} closed": "0",
        f"+ batch:{BATCH} digest": "of the order",
        f"+ batch:{BATCH} groups": "1",
        f"+ batch:{BATCH} jobs": "2",
        f"+ backlog:acme:r {MADE}": "<ms>",
        f"+ batches:acme:r {BATCH}": "<ms>",
        f"+ fork:{MADE}": "hash",
        f"+ fork:{MADE} saved": "",
        f"+ fork:{MADE} saved_in": "",
        f"+ fork:{MADE} turns": "<packed>",
        f"+ {group}": "hash",
        f"+ {group} at": "<ms>",
        f"+ {group} batch": BATCH,
        f"+ {group} digest": "of the order",
        f"+ {group} n": "2",
        f"+ {group} next": "0",
        f"+ {group} open": "0",
        f"+ {group} refills": "0",
        f"+ {group} family": "sums",
        f"+ {group} total_ms": "3600000",
        f"+ {group} wanted": "2",
        f"+ groups:acme:r {MADE}": "member",
        f"+ groups:{BATCH} {MADE}": "member",
        f"+ open:{MADE}": "string",
        f"+ open:{MADE} value": "<packed>",
        f"+ sealed:{MADE}": "string",
        f"+ sealed:{MADE} value": "<packed>",
    }
    assert await queue.command("GET", queue.keys.sealed(MADE)) == encode({"answer": 2})
    assert (await queue.store.inherited(MADE)) == Inherited(SCHEMA, "r:g:0", 1, [b"C0", b"R0", b"C1", b"R1"], None)


async def test_its_jobs_are_admitted_as_any_and_their_turns_go_with_the_group(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    await fork(queue, n=1)
    wanted = await queue.wanted(MADE)
    assert await queue.store.admit(RUN, [wanted]) == [1]
    for stage in (Stage.INIT,):
        [held] = await queue.take(stage)
        assert held.ref == JobRef(f"{MADE}:0")
        assert await queue.finish(held, Outcome.COMPLETED) == "finished"
    assert await queue.command("EXISTS", queue.keys.fork(MADE)) == 1
    await queue.settle()
    left = [queue.keys.open(MADE), queue.keys.sealed(MADE), queue.keys.fork(MADE)]
    assert await queue.command("EXISTS", *left) == 0


async def test_a_repeat_is_answered_already_and_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await fork(queue)
    await watch.look()
    assert await fork(queue) == "already"
    await watch.nothing_changed()


async def test_the_name_of_another_fork_or_batch_is_a_conflict(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await fork(queue)
    await watch.look()
    assert await fork(queue, digest="of another order") == "conflict"
    await watch.nothing_changed()


async def test_the_name_of_a_group_of_another_batch_is_a_conflict(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await queue.submit("tree", batch="other")
    await watch.look()
    assert await fork(queue) == "conflict"
    await watch.nothing_changed()


async def test_a_parent_whose_group_has_closed_meanwhile_is_looked_at_again(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await queue.finish(held)
    await queue.settle()
    await watch.look()
    assert await fork(queue) == "moved"
    await watch.nothing_changed()
    assert await fork(queue, sealed=b"given again") == "forked"
    assert await queue.command("GET", queue.keys.sealed(MADE)) == b"given again"


async def test_the_file_of_a_checkpoint_is_lent_as_long_as_the_parent_names_it(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await queue.command("HSET", queue.keys.job(JOB), "saved_in", "file:70000:" + "cd" * 20)
    await watch.look()
    assert await fork(queue, file=FILE) == "moved"
    await watch.nothing_changed()
    await queue.command("HSET", queue.keys.job(JOB), "saved_in", FILE)
    assert await fork(queue, file=FILE) == "forked"
    assert (await watch.changes())[f"+ {J} lent"] == "1"
    assert await queue.store.lent(MADE) == (b"", FILE)


async def test_a_fork_lends_on_what_it_was_lent(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    first = GroupRef("acme:r:first")
    await queue.command("HSET", queue.keys.fork(first), "saved_in", FILE)
    assert await fork(queue, file=FILE, lender=queue.keys.fork(first)) == "forked"
    assert await queue.command("HEXISTS", queue.keys.job(JOB), "lent") == 0
    assert await queue.store.lent(MADE) == (b"", FILE)


async def test_a_priority_is_waiting_time(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    await queue.submit("later", batch="later")
    await fork(queue, priority=1)
    assert await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, 0) == [MADE.encode()]


async def test_a_full_redis_takes_no_fork(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    await queue.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(OverQuota, match="takes no fork of job 'r:g:0'"):
            await fork(queue)
    finally:
        await queue.command("CONFIG", "SET", "maxmemory", 0)


@case("fork", "already")
async def _(queue: Queue) -> Act:
    await queue.hold(Stage.RUN)
    return fork
