"""vacate: the keys of a run that has left are removed, by its departure alone; a note of its cell stays."""

import pytest

from prorl_mq.service.fsck.look import look
from prorl_mq.store.moves import moving
from prorl_mq.store.moves.pages import server_of
from tests.support.queue import RUN, Queue
from tests.verbs.lost import Act, case
from tests.verbs.moved import MOVER, copied, departed, other, published

pytestmark = pytest.mark.anyio


@case("vacate", "already")
async def _(queue: Queue) -> Act:
    await queue.submit()
    departure = await departed(queue)
    server = server_of(await queue.command("INFO", "replication"))
    return lambda q: q.store.vacate(RUN, departure, [], last=server)


async def test_a_note_of_the_cell_is_all_that_stays(queue: Queue) -> None:
    await published(queue)
    departure = await departed(queue)
    assert await moving.clear(queue.store, RUN, departure) == "vacated"
    names = [name.decode() for name in await queue.command("KEYS", f"{queue.keys.prefix}*{RUN}*")]
    assert names == [queue.keys.away(RUN)]
    assert await queue.command("HGETALL", names[0]) == [b"way", b"gone", b"cell", b"b", b"id", departure.encode()]
    assert await queue.command("PTTL", names[0]) > 0
    assert (await look(queue.store)).violations == []


async def test_a_run_that_has_come_back_is_not_removed_by_an_old_departure(queue: Queue) -> None:
    """The control: the departure is another one, though it is for the same cell."""
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    first = await departed(queue)
    await copied(queue, there, first)
    await moving.clear(queue.store, RUN, first)
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="b")
    assert await queue.store.vacate(RUN, first, []) == "already"
    back = await departed(there)
    assert await copied(there, queue, back) == "opened"
    assert await queue.store.vacate(RUN, first, [queue.keys.run(RUN)]) == "already"
    second = await departed(queue)
    assert second != first
    assert await queue.store.vacate(RUN, first, [queue.keys.run(RUN)]) == "already"
    assert await queue.command("EXISTS", queue.keys.run(RUN)) == 1
    assert await queue.store.vacate(RUN, second, [queue.keys.run(RUN)]) == "vacated"


async def test_a_run_whose_keys_were_looked_for_on_another_server_is_looked_for_again(queue: Queue) -> None:
    """A scan that a restart has cut in two may have missed some."""
    await published(queue)
    departure = await departed(queue)
    assert await queue.store.vacate(RUN, departure, [], last="before") == "restarted"
    assert await queue.command("EXISTS", queue.keys.departed(RUN)) == 1
    assert await moving.clear(queue.store, RUN, departure) == "vacated"
