"""A run in a namespace, and another namespace that it may move to."""

from prorl_mq.schema.items import Finish
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.verbs.moves import DepartedRun
from tests.support.queue import RUN, Queue, record
from tests.verbs.places import JOB

MOVER = "m"


async def other(queue: Queue) -> Queue:
    """The other cell, on the same server."""
    made = Queue(queue.redis, Keys(f"{queue.keys.namespace}-b"))
    await made.prepare()
    return made


async def published(queue: Queue) -> None:
    """The run has a result that nobody has acknowledged, and a group that waits."""
    held = await queue.hold(Stage.EVAL)
    blob = await queue.command("HGET", queue.keys.job(JOB), "trajectory")
    ended = record(JOB, trajectory=blob.decode(), trajectory_bytes=100)
    assert await queue.store.finish([Finish(held, Outcome.COMPLETED, ended)]) == ["finished"]
    await queue.settle()
    await queue.submit("waits", batch="second")


async def departed(queue: Queue) -> str:
    """The run has left for `b`: the departure."""
    left = await moving.depart(queue.store, RUN, "b")
    assert isinstance(left, DepartedRun), left
    return left.id


async def copied(queue: Queue, to: Queue, departure: str, after: str | None = "") -> str:
    """Every page of it from one on is written, and the run is open there."""
    while after is not None:
        page = await pages.page(queue.store, RUN, departure, after)
        state, _ = await moving.take(to.store, RUN, MOVER, departure, page, first=not after)
        after = page.after
    return state
