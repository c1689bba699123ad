"""Reads what the advisor judges by."""

from msgspec.structs import replace

from prorl_mq.schema.ids import DEFAULT_TENANT, RunRef, tenant_of
from prorl_mq.schema.status import RunStatus
from prorl_mq.service.advice.bottleneck import Advice, LimitFacts, judge
from prorl_mq.store import gauges, runs
from prorl_mq.store.images import records
from prorl_mq.store.store import Store


async def advise(store: Store, tenant: str | None = None) -> Advice:
    """Judges what limits the service now. `tenant`: only its runs are named, and no image, as it may be another's."""
    now, images = await gauges.read(store), await records.all_of(store)
    if tenant is not None:
        unnamed = [replace(each, name="one") for each in images]
        return judge(LimitFacts(now=now, runs=await runs.of_tenant(store, tenant), images=unnamed))
    known = await runs.known(store)
    return judge(LimitFacts(now=now, runs=list(map(_owned, known, await runs.look(store, known))), images=images))


def _owned(ref: RunRef, run: RunStatus) -> RunStatus:
    """Named as `prorl-mq run` takes it."""
    return run if tenant_of(ref) == DEFAULT_TENANT else replace(run, run_id=ref)
