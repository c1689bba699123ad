"""peek: messages of intakes that hold little, and the size alone of those that hold much; nothing changes."""

import pytest

from prorl_mq.schema.ids import RunRef
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio
OTHER, EMPTY = RunRef("globex:r"), RunRef("globex:none")
MIB = 1 << 20


async def add(queue: Queue, run: RunRef, *bodies: bytes) -> None:
    for number, body in enumerate(bodies, 1):
        await queue.command("XADD", queue.keys.intake(run), f"{number}-1", "m", body)


async def test_small_messages_come_with_the_look_in_their_order(queue: Queue, watch: Watch) -> None:
    await add(queue, OTHER, b"1", b"2", b"3")
    await watch.look()
    [[place, size, length, entries]] = await queue.store.peek([EMPTY, OTHER], limit=2, most_bytes=MIB, room_bytes=MIB)
    assert (place, length, entries) == (2, 3, [[b"1-1", [b"m", b"1"]], [b"2-1", [b"m", b"2"]]])
    assert size < MIB
    await watch.nothing_changed()


async def test_what_holds_much_is_measured_wherever_among_its_first_messages_it_lies(queue: Queue) -> None:
    for large in range(4):
        await queue.command("DEL", queue.keys.intake(RUN))
        await add(queue, RUN, *(bytes(2 * MIB) if at == large else b"small" for at in range(4)))
        [[_, size, length, entries]] = await queue.store.peek([RUN], limit=4, most_bytes=MIB, room_bytes=4 * MIB)
        assert (length, entries) == (4, None)
        assert size > 2 * MIB


async def test_an_intake_for_which_a_look_has_no_room_is_left_out(queue: Queue) -> None:
    for run in (RUN, OTHER):
        await add(queue, run, bytes(MIB // 2))
    found = await queue.store.peek([RUN, OTHER], limit=4, most_bytes=MIB, room_bytes=MIB)
    assert [place for place, *_ in found] == [1]


async def test_a_key_of_another_kind_is_named_and_hides_nothing(queue: Queue) -> None:
    await queue.command("SET", queue.keys.intake(RUN), "no stream")
    await add(queue, OTHER, b"1")
    wrong, right = await queue.store.peek([RUN, OTHER], limit=4, most_bytes=MIB, room_bytes=MIB)
    assert wrong == [1, -1, 0, None]
    assert right[3] == [[b"1-1", [b"m", b"1"]]]
