"""Reads what the advisor judges by."""

from prorl_mq.service.advice.bottleneck import Advice, LimitFacts, judge
from prorl_mq.store import gauges, runs
from prorl_mq.store.images import records
from prorl_mq.store.store import Store


async def advise(store: Store, tenant: str | None = None) -> Advice:
    """Judges what limits the service now. `tenant`: only its runs are named."""
    now = await gauges.read(store)
    known = await runs.known(store) if tenant is None else None
    found = await runs.look(store, known) if known is not None else await runs.of_tenant(store, tenant or "")
    return judge(LimitFacts(now=now, runs=found, images=await records.all_of(store)))
