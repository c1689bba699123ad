"""wake: parked groups are due again."""

import pytest

from prorl_mq.rules.groups import Withdrawal
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, G
from tests.verbs.reserved import BATCH, drawn, finished, park

pytestmark = pytest.mark.anyio


async def test_a_parked_group_is_due_again_once(queue: Queue, watch: Watch) -> None:
    await finished(queue, *await drawn(queue, "g"))
    assert await park(queue, GROUP) == "parked"
    await watch.look()
    assert await queue.store.wake(BATCH, [GROUP]) == 1
    assert await watch.changes() == {
        "+ due#1": f"g={GROUP}",
        f"- parked:{BATCH} {GROUP}": "1",
        f"- {G} parked": "1",
    }
    assert await queue.store.wake(BATCH, [GROUP]) == 0
    await watch.nothing_changed()


async def test_a_group_that_still_runs_is_left_alone(queue: Queue, watch: Watch) -> None:
    await drawn(queue, "g")
    await watch.look()
    assert await queue.store.wake(BATCH, [GROUP]) == 0
    await watch.nothing_changed()


async def test_a_parked_group_that_is_withdrawn_is_due_again(queue: Queue, watch: Watch) -> None:
    """Else nobody would ever close it."""
    await finished(queue, *await drawn(queue, "g"))
    await park(queue, GROUP)
    await watch.look()
    await queue.store.withdraw(RUN, {GROUP: BATCH}, Withdrawal.UNNEEDED)
    changed = await watch.changes()
    assert (changed["+ due#1"], changed[f"+ {G} withdrawn"]) == (f"g={GROUP}", "unneeded")
