"""The notes of the router of several cells: at a run's home, the cell that holds it."""

import msgspec
from starlette.requests import Request

from api.operations import operation
from api.routes.moving import Tenant, moved
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import Name
from prorl_mq.store import runs
from prorl_mq.store.store import Store


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """The cell of a run, in place of `was` or of none."""

    cell: Name
    was: Name | None = None


class RunCell(msgspec.Struct, frozen=True, kw_only=True):
    """The cell that is noted for a run."""

    cell: str


@operation("PUT", "/v1/runs/{run}/cell", errors=(403,))
async def place_run(request: Request, store: Store, run: RunRef, placing: Placing, tenant: Tenant = "") -> RunCell:
    """Note which of several cells holds a run; where another one is noted, it stays. For the router."""
    run = moved(request, run, tenant) if tenant else run
    return RunCell(cell=await store.place(run, placing.cell, placing.was or ""))


@operation("GET", "/v1/runs/{run}/cell")
async def placed_run(store: Store, run: RunRef) -> RunCell:
    """The cell that is noted for a run. For the router."""
    return RunCell(cell=await runs.placed(store, run))
