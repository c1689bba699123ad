"""give: what a run that has left held of shared keys is handed out; then its cell alone cannot take it back."""

import msgspec
import pytest

from prorl_mq.errors import Conflict
from prorl_mq.store.moves import moving, pages
from tests.support.queue import RUN, Queue
from tests.verbs.lost import Act, case
from tests.verbs.moved import departed, published

pytestmark = pytest.mark.anyio


@case("give", "given")
async def _(queue: Queue) -> Act:
    await queue.submit()
    departure = await departed(queue)

    async def act(q: Queue) -> str:
        return (await q.store.give(RUN, departure))[0]

    return act


async def test_only_the_departure_that_it_has_left_by_gets_what_it_held(queue: Queue) -> None:
    await published(queue)
    assert await queue.store.give(RUN, "1") == ("gone", b"")
    departure = await departed(queue)
    assert not (await moving.whereabouts(queue.store, RUN)).given
    said, facts = await queue.store.give(RUN, departure)
    assert (said, msgspec.msgpack.decode(facts)["unacked"]) == ("given", "1")
    assert (await moving.whereabouts(queue.store, RUN)).given
    assert await queue.store.give(RUN, "other") == ("gone", b"")
    assert await moving.clear(queue.store, RUN, departure) == "vacated"
    assert await queue.store.give(RUN, departure) == ("gone", b"")


async def test_a_run_on_its_way_back_is_given_nowhere_until_that_has_ended(queue: Queue) -> None:
    await published(queue)
    departure = await departed(queue)
    await queue.store.give(RUN, departure)
    assert await queue.store.restore(RUN, departure, "ask") == "given"
    assert await queue.store.give(RUN, departure) == ("back", b"")
    with pytest.raises(Conflict, match="is on its way back"):
        await pages.page(queue.store, RUN, departure, "")
    assert await queue.store.restore(RUN, departure, "keep") == "kept"
    assert (await queue.store.give(RUN, departure))[0] == "given"
