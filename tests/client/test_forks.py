"""Forks as trainers ask for them, over HTTP and straight over Redis."""

import random
from typing import Any

import msgspec
import pytest

from prorl_mq.client import AsyncClient
from prorl_mq.errors import ServiceError
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import JobRef, RunRef, group_of, group_ref
from prorl_mq.schema.items import GroupSpec, Held, Logged
from prorl_mq.schema.messages import BatchRequest, Sampling
from prorl_mq.schema.status import ForkAnswer
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.schema.turns import CHECKPOINT, Archive, Checkpoint
from prorl_mq.store.payloads.limits import SMALL_BYTES
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import RedisSettings
from tests.agent import test_journal as journal
from tests.api.service import Worker, batch
from tests.api.test_turns import answered, put, sampled, write
from tests.worker.stage import until

pytestmark = pytest.mark.anyio
PARENT, RUN = "run:batch-0:0", RunRef("default:run")


async def logged(client: AsyncClient, worker: Worker, turns: int = 3, **more: Any) -> Held:
    """A job in RUN with some turns in its log."""
    await client.submit(batch(groups=1, **more))
    held = await worker.in_run()
    records = [each for turn in range(turns) for each in (sampled(turn), answered(f"answer {turn}"))]
    await write(worker, held, records)
    return held


async def test_a_job_in_run_is_forked_and_its_children_begin_with_its_turns(
    client: AsyncClient, worker: Worker
) -> None:
    await logged(client, worker, priority=2)
    made = await client.fork(PARENT, 1, 2, group="tree")
    assert made == ForkAnswer(
        run_id="run", batch_id="tree", jobs=["run:tree:0", "run:tree:1"], job_id=PARENT, turn=1, shared_tokens=4,
        restores=-1,
    )  # fmt: skip
    assert await client.fork(PARENT, 1, 2, group="tree") == msgspec.structs.replace(made, repeated=True)
    with pytest.raises(ServiceError, match="another batch or fork 'run:tree': give this fork another name"):
        await client.fork(PARENT, 0, 2, group="tree")
    page = await client.turns("run:tree:0")
    assert page.note == "it waits for its admission" or len(page.turns) == 2
    child = await worker.in_run()
    assert child.ref == JobRef("default:run:tree:0")
    page, theirs = await client.turns("run:tree:0"), await client.turns(PARENT)
    assert [each.calls for each in page.turns] == [each.calls for each in theirs.turns[:2]]
    assert [list(each.ids) for each in page.turns] == [list(each.ids) for each in theirs.turns[:2]]
    assert ({logprob for each in page.turns for logprob in each.logprobs}, page.rollout) == ({0.0}, "")
    packed = await worker.store.read("GET", worker.keys.open(group_of(child.ref)))
    spec = msgspec.msgpack.decode(packed, type=GroupSpec)
    assert (spec.fork, spec.priority, spec.n) == (ForkedFrom(job_id=PARENT, turn=1), 2, 2)
    status = await client.batch("run:tree")
    assert (status.groups, status.open) == (1, 1)


@pytest.mark.parametrize(("given", "kept"), [(None, 3), (0, 0), (5, 5)])
async def test_refills_are_those_that_the_batch_allows(
    client: AsyncClient, worker: Worker, given: int | None, kept: int
) -> None:
    """Without a word of it a group may be refilled as often as it has samples, and so may a fork."""
    request = batch(groups=1)
    request["groups"][0]["max_refills"] = given
    await client.submit(request)
    held = await worker.in_run()
    await write(worker, held, [sampled(0), answered("a")])
    await client.fork(PARENT, 0, 3, group="tree")
    packed = await worker.store.read("GET", worker.keys.open(group_ref(RUN, "tree")))
    assert msgspec.msgpack.decode(packed, type=GroupSpec).max_refills == kept


async def test_a_fork_is_forked_with_what_it_has_itself_and_what_it_was_given(
    client: AsyncClient, worker: Worker
) -> None:
    await logged(client, worker)
    await client.fork(PARENT, 1, 1, group="first")
    held = await worker.in_run()
    await put(worker, held, 0, b"w" + encode((None, "s2", True)))
    for place, record in enumerate((sampled(9, (5, 6, 7)), answered("its own")), 4):
        await put(worker, held, place - 3, b"t" + place.to_bytes(4, "big") + record)
    made = await client.fork("run:first:0", 2, 1, group="second")
    assert made.shared_tokens == 7
    await worker.in_run()
    turns = (await client.turns("run:second:0")).turns
    assert [list(each.ids) for each in turns] == [[7, 8], [7, 8], [5, 6, 7]]
    assert turns[2].calls[0].result == "its own"


async def test_a_checkpoint_goes_with_the_fork_if_it_is_of_these_turns(client: AsyncClient, worker: Worker) -> None:
    held = await logged(client, worker)
    archive = encode(Archive("d", b"files"))
    note = CHECKPOINT + encode(Checkpoint(1, "d"))
    assert await worker.store.log([Logged(held, 7, note, archive)]) == ["logged"]
    assert (await client.fork(PARENT, 0, 1)).restores == -1
    made = await client.fork(PARENT, 1, 1)
    assert (made.restores, made.batch_id) == (1, "batch-0.0-t1-n1")
    assert await worker.store.lent(group_ref(RUN, made.batch_id)) == (archive, "")
    assert len(archive) < SMALL_BYTES


@pytest.mark.parametrize("broken", [CHECKPOINT + b"\xc1", b"w\x93", b"p\xc1"])
async def test_a_log_that_cannot_be_read_is_not_forked_and_says_so(
    client: AsyncClient, worker: Worker, broken: bytes
) -> None:
    held = await logged(client, worker)
    await put(worker, held, 7, broken)
    with pytest.raises(ServiceError, match=r"cannot be read.*; fork it when its RUN has ended") as refused:
        await client.fork(PARENT, 3)
    assert refused.value.status == 409


async def test_where_a_job_cannot_be_forked_it_says_why_and_what_to_do(client: AsyncClient, worker: Worker) -> None:
    held = await logged(client, worker, sampling={"max_turns": 3})
    await put(worker, held, 7, b"t" + (6).to_bytes(4, "big") + sampled(9))
    for turn, said in (
        (2, "its rollouts end after 3 turns: fork it at an earlier turn"),
        (5, "its rollouts end after 3 turns"),
    ):
        with pytest.raises(ServiceError, match=said):
            await client.fork(PARENT, turn)
    with pytest.raises(ServiceError, match="there is no such job, or its group was acknowledged"):
        await client.fork("run:none:0", 0)
    with pytest.raises(ServiceError, match="has no sample 7"):
        await client.fork("run:batch-0:7", 0)
    for name in ("run:batch-0:-1", "run:batch-0:00", "run:batch-0:x"):
        with pytest.raises(ServiceError) as refused:
            await client.fork(name, 0)
        assert (refused.value.status, "waits" in str(refused.value)) == (404, False), str(refused.value)
    for wrong in ({"turn": -1}, {"turn": 0, "n": 0}, {"turn": 0, "priority": 99}, {"turn": 0, "group": "a b"}):
        with pytest.raises(ServiceError) as refused:
            await client.fork(PARENT, **wrong)  # type: ignore[arg-type]
        assert refused.value.status == 422


async def test_what_its_log_does_not_have_cannot_be_forked(client: AsyncClient, worker: Worker) -> None:
    await client.submit(batch(groups=1))
    with pytest.raises(ServiceError, match=r"waits for its admission|has logged no turn"):
        await client.fork(PARENT, 0)
    held = await worker.in_run()
    with pytest.raises(ServiceError, match="has logged no turn"):
        await client.fork(PARENT, 0)
    await write(worker, held, [sampled(0), answered("a"), sampled(1)])
    with pytest.raises(ServiceError, match="the calls of turn 1 are not answered yet"):
        await client.fork(PARENT, 1)
    with pytest.raises(ServiceError, match="its log ends with turn 0: fork it there or before"):
        await client.fork(PARENT, 2)
    assert (await client.fork(PARENT, 0)).turn == 0


async def test_a_finished_job_is_forked_from_its_trajectory_with_its_batch_given_again(
    client: AsyncClient, worker: Worker
) -> None:
    ran = await journal.rollout(journal.Log(), journal.World(), journal.Sampler(journal.TEXTS))
    request = msgspec.convert(batch(groups=1, n=2), BatchRequest)
    await client.submit(request)
    await worker.finish(await worker.in_run(), trajectory=ran.trajectory)
    first = "run:batch-0:0" if (await client.job("run:batch-0:0")).outcome else "run:batch-0:1"
    assert (await client.fork(first, 2, 1, group="open")).turn == 2, "its group is open: the service has its task"
    with pytest.raises(ServiceError, match="nothing follows the last one: fork it at turn 0 to 5"):
        await client.fork(first, 6)
    await worker.finish(await worker.in_run(), trajectory=ran.trajectory)
    [closed] = [each async for each in client.groups("run", "batch")]
    with pytest.raises(ServiceError, match=r"its group has closed, .* send the batch with it, as it was submitted"):
        await client.fork(first, 2)
    other = msgspec.structs.replace(request, sampling=Sampling(temperature=0.5))
    with pytest.raises(ServiceError, match="another one than was submitted"):
        await client.fork(first, 2, batch=other)
    made = await client.fork(first, 2, 1, batch=request)
    assert made.shared_tokens == sum(each.completion_tokens for each in ran.trajectory.turns[:3])
    sealed = [worker.keys.sealed(group_ref(RUN, name)) for name in (made.batch_id, "open")]
    assert len({await worker.store.read("GET", key) for key in sealed}) == 1
    await client.ack("run", [closed.cursor])

    async def gone() -> bool:
        return not await worker.store.read("EXISTS", worker.keys.group(group_ref(RUN, "batch-0")))

    await until(gone)  # on the direct path a moment later
    with pytest.raises(ServiceError, match="fork a job before you acknowledge its group"):
        await client.fork(first, 1, batch=request)
    assert (await client.fork(first, 2, 1, batch=request)).repeated, "a repeat needs no parent"


async def test_another_tenants_job_is_none(
    client: AsyncClient, worker: Worker, settings: RedisSettings, address: str
) -> None:
    if address.startswith("http"):
        pytest.skip("a tenant is known by its token there: tests/api/test_tenants.py asks every route")
    await logged(client, worker)
    async with AsyncClient(address, namespace=settings.namespace, tenant="other", patience_s=20) as stranger:
        with pytest.raises(ServiceError, match="no such job"):
            await stranger.fork(PARENT, 0)


async def test_a_redis_without_room_for_copied_turns_takes_no_fork(client: AsyncClient, worker: Worker) -> None:
    await logged(client, worker)
    used = (await fitness.memory(worker.store)).used
    await worker.redis.execute_command("CONFIG", "SET", "maxmemory", int(used / 0.75))  # type: ignore[no-untyped-call]
    client.patience_s = 0
    refused: list[str] = []

    async def full() -> bool:
        """The service looks at memory now and then."""
        try:
            await client.fork(PARENT, 0, group=f"g{len(refused)}-{random.random()}")
        except ServiceError as error:
            refused.append(str(error))
        return bool(refused)

    try:
        await until(full)
    finally:
        await worker.redis.execute_command("CONFIG", "SET", "maxmemory", 0)  # type: ignore[no-untyped-call]
    assert "of its memory" in refused[0]
