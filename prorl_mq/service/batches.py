"""The newest batches of a run, each with how far it is."""

from collections.abc import Sequence

import msgspec

from prorl_mq.errors import NotFound
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import BatchStatus
from prorl_mq.service import inspect
from prorl_mq.store import batches
from prorl_mq.store.store import Store


class DatedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and when it came."""

    submitted_ms: int
    batch: BatchStatus


async def newest(store: Store, run: RunRef, *, limit: int) -> Sequence[DatedBatch]:
    """The newest first; those that are forgotten are left out."""
    found = []
    for ref, came_ms in await batches.newest(store, run, limit=limit):
        try:
            batch = await inspect.batch_status(store, ref)
        except NotFound:
            continue
        found.append(DatedBatch(submitted_ms=came_ms, batch=batch))
    return found
