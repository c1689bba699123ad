"""A batch that is stored in several calls is refused whole before the first, or says what is stored."""

import pytest

from prorl_mq.errors import Conflict
from prorl_mq.schema.dapo import Dapo
from prorl_mq.schema.ids import batch_ref
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import submit
from prorl_mq.store import work
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio
COUNT = submit.CALL_GROUPS + 6


def request(batch: str, count: int = COUNT, *, last: str | None = None, dapo: Dapo | None = None) -> BatchRequest:
    """A batch whose last group has the id `last`."""
    tasks = [Task(task_id=f"t{number}", data_source="sums", payload={"q": number}) for number in range(count)]
    groups = [GroupRequest(task=task, n=1) for task in tasks[:-1]]
    return BatchRequest(
        run_id="r", batch_id=batch, groups=[*groups, GroupRequest(task=tasks[-1], n=1, group_id=last)], dapo=dapo
    )


@pytest.fixture
async def known(queue: Queue) -> Queue:
    await work.enroll(queue.store, {"sums": Schema(open_ended=True)}, None)
    return queue


async def test_an_id_that_is_taken_refuses_the_parts_before_it_too(known: Queue, watch: Watch) -> None:
    await submit.accept(known.store, "acme", request("one", 1, last="same"))
    await watch.look()
    with pytest.raises(Conflict, match="group 'r:same' exists with another body"):
        await submit.accept(known.store, "acme", request("two", last="same"))
    await watch.nothing_changed()
    accepted = await submit.accept(known.store, "acme", request("two", last="other"))
    assert (len(accepted.groups), accepted.repeated) == (COUNT, False)
    assert (await submit.accept(known.store, "acme", request("two", last="other"))).repeated


async def test_another_body_of_the_batch_stores_no_part(known: Queue, watch: Watch) -> None:
    await submit.accept(known.store, "acme", request("one", 1))
    await watch.look()
    with pytest.raises(Conflict, match="was submitted before with another body"):
        await submit.accept(known.store, "acme", request("one"))
    await watch.nothing_changed()


async def test_a_batch_that_has_ended_gets_no_part_and_a_repeat_of_a_whole_one_is_answered(
    known: Queue, watch: Watch
) -> None:
    whole = request("b", dapo=Dapo(target_groups=1))
    await submit.accept(known.store, "acme", whole)
    await known.store.halt(batch_ref(RUN, "b"), "cancelled")
    await watch.look()
    assert (await submit.accept(known.store, "acme", whole)).repeated
    await watch.nothing_changed()
    await known.command("UNLINK", known.keys.prefix + "group:acme:r:b-3")
    await watch.look()
    with pytest.raises(Conflict, match="has ended and takes no more groups"):
        await submit.accept(known.store, "acme", whole)
    await watch.nothing_changed()
