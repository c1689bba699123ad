"""Batches and runs that a trainer without HTTP may cancel while Redis is full: it moves a name from one set to another.

XADD and SADD are refused at `maxmemory`, SMOVE is not. A trainer's Redis user may move and not add, so neither set ever
holds a name that the service did not write.
"""

from collections.abc import Collection

from prorl_mq.schema.ids import BatchRef, RunRef, tenant_of
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store


async def offer(store: Store, run: RunRef, batch: BatchRef) -> None:
    """Makes a batch and its run cancellable. The batch is taken out when it closes, both when they are cancelled."""
    await store.write("SADD", store.keys.cancellable(run), run, batch, repeat=Repeat.SAME)


async def ask(store: Store, run: RunRef, name: RunRef | BatchRef) -> bool:
    """Asks, for a trainer, to cancel a batch or run; False where it cannot be: it has ended, or was never offered."""
    source, target = store.keys.cancellable(run), store.keys.to_cancel(tenant_of(run))
    if await store.write("SMOVE", source, target, name, repeat=Repeat.SAME):
        return True
    return bool(await store.read("SISMEMBER", target, name))


async def asked(store: Store, tenants: Collection[str]) -> list[str]:
    """Names of batches and runs that these tenants want cancelled, in order."""
    keys = [store.keys.to_cancel(tenant) for tenant in sorted(tenants)]
    if not keys or not await store.read("EXISTS", *keys):
        return []
    return sorted(name.decode() for name in await store.read("SUNION", *keys))
