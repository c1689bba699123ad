"""A DAPO batch on its way, made by the verbs alone: what the tests of its verbs begin with."""

from prorl_mq.schema.codec import encode
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.ids import BatchRef, GroupRef
from prorl_mq.schema.items import NewBatch, NewGroup, Seen, Settlement
from prorl_mq.schema.messages import Stage
from prorl_mq.store.batches import DrawPlan
from tests.support.queue import LINGER_MS, RUN, Queue

BATCH = BatchRef("acme:r:b")
NEXT = BatchRef("acme:r:b2")
B = f"batch:{BATCH}"


def reserved(
    queue: Queue, *names: str, batch: BatchRef = BATCH, target: int = 1, surplus: Surplus = Surplus.CARRY
) -> tuple[NewBatch, list[NewGroup]]:
    """A DAPO batch whose groups wait in its reservoir."""
    made = [queue.new(name, batch=batch.rpartition(":")[2])[1] for name in names]
    plan = encode(DrawPlan(dapo=Dapo(target_groups=target, surplus=surplus), pool="acme:policy"))
    about = NewBatch(RUN, batch, f"digest of {batch}", len(made), len(made), plan=plan, target=target)
    return about._replace(waits_in=batch), made


async def submit(queue: Queue, *names: str, batch: BatchRef = BATCH, target: int = 1) -> list[GroupRef]:
    about, groups = reserved(queue, *names, batch=batch, target=target)
    await queue.store.submit(about, groups)
    return [group.ref for group in groups]


async def drawn(queue: Queue, *names: str, target: int = 1) -> list[GroupRef]:
    """Groups in play."""
    refs = await submit(queue, *names, target=target)
    assert await queue.store.draw(BATCH, BATCH, dict.fromkeys(refs, BATCH), drawn=0) == len(refs)
    return refs


async def finished(queue: Queue, *refs: GroupRef) -> None:
    """The only sample of each group has ended, so that all of them are due."""
    for ref in refs:
        await queue.store.admit(RUN, [await queue.wanted(ref)])
    for held in await queue.take(Stage.INIT):
        await queue.finish(held)


async def due(queue: Queue, ref: GroupRef, **about: object) -> Settlement:
    """A settlement of a due group that fits what is there; `about` changes what it saw."""
    entries = {
        fields[1].decode(): entry.decode() for entry, fields in await queue.command("XRANGE", queue.keys.due, "-", "+")
    }
    changes = (await queue.command("HGET", queue.keys.group(ref), "changes")).decode()
    seen = Seen("open", carried=False)._replace(**about)
    return Settlement(entries[ref], ref, BATCH, 1, changes, seen=seen)


async def accept(queue: Queue, ref: GroupRef) -> str:
    verdict = await due(queue, ref)
    verdict = verdict._replace(verdict="accepted", record=b"record", bytes=6, counts=True, tally=[("n:accepted", 1)])
    return await queue.store.settle(verdict, linger_ms=LINGER_MS)


async def park(queue: Queue, ref: GroupRef, **about: object) -> str:
    verdict = await due(queue, ref, **about)
    return await queue.store.settle(verdict._replace(park=True), linger_ms=LINGER_MS)
