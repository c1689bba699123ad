"""enroll: a worker that starts announces its task families and its node's lane, also where memory is full."""

from collections.abc import Sequence
from typing import Any

import pytest

from prorl_mq.errors import UnknownDataSource
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store import families, work
from prorl_mq.store.layout.keys import GROUP
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.test_memory_limit import fill, small

__all__ = ["small"]
pytestmark = pytest.mark.anyio

NONE: list[str] = []
SCHEMAS = {
    "sums": Schema(required=["question"], optional=NONE, sealed=["answer"]),
    "games": Schema(required=NONE, optional=NONE, sealed=NONE, open_ended=True),
}


async def test_the_families_are_known_and_the_node_has_a_lane(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await work.enroll(queue.store, SCHEMAS, "n7") == "enrolled"
    digest = families.digest_of(SCHEMAS)
    new = {"+ lanes n7", "+ schemas", "+ schemas sums", "+ schemas games", "+ families", f"+ families {digest}"}
    assert set(await watch.changes()) == new
    [about] = await queue.command("XINFO", "GROUPS", queue.keys.stage(Stage.RUN, "n7"))
    assert about[1] == GROUP.encode()
    assert await families.load(queue.store, SCHEMAS) == SCHEMAS
    assert (await families.abilities(queue.store)).sets == {digest: {"sums", "games"}}


async def test_what_a_worker_takes_may_be_less_than_what_it_can_run(queue: Queue) -> None:
    await work.enroll(queue.store, SCHEMAS, None, {"games"})
    assert (await families.abilities(queue.store)).sets == {families.digest_of({"games"}): {"games"}}


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await work.enroll(queue.store, SCHEMAS, "n7")
    await watch.look()
    await work.enroll(queue.store, SCHEMAS, "n7")
    await watch.nothing_changed()


async def test_a_worker_of_a_stage_without_lanes_makes_none(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await work.enroll(queue.store, {}, None)
    await watch.nothing_changed()


async def test_a_worker_may_start_while_memory_is_full(small: Queue) -> None:
    """What is in play frees memory only when it ends, and it ends only with workers."""
    await fill(small)
    assert await work.enroll(small.store, SCHEMAS, "n7") == "enrolled"
    assert await families.load(small.store, SCHEMAS) == SCHEMAS


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_family_that_is_announced_while_it_is_looked_for_is_found(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """The control reads what there is, and then its names: it knows none of that name, and means the same."""
    store = queue.store
    read_at_once = store.read_at_once

    async def later(commands: Sequence[Any]) -> list[Any]:
        if at_once:
            await work.enroll(store, SCHEMAS, None)
            return await read_at_once(commands)
        found = await store.read_many(commands[:1])
        await work.enroll(store, SCHEMAS, None)
        return [*found, *await store.read_many(commands[1:])]

    monkeypatch.setattr(store, "read_at_once", later)
    if at_once:
        assert await families.load(store, ["sums"]) == {"sums": SCHEMAS["sums"]}
    else:
        with pytest.raises(UnknownDataSource, match="'sums': did you mean 'sums'"):
            await families.load(store, ["sums"])
