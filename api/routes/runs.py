"""The runs of a tenant: how each stands, and the weight and quotas that admission keeps."""

from collections.abc import Sequence

import msgspec

from api.operations import operation
from prorl_mq.schema.ids import RunRef, TenantId
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import RunStatus
from prorl_mq.store import runs
from prorl_mq.store.store import Store


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a tenant that were used in the last week or hold something, by name."""

    runs: Sequence[RunStatus]


@operation("GET", "/v1/runs")
async def list_runs(store: Store, tenant: TenantId) -> RunList:
    """The caller's runs: what each holds, its weight and quotas, and why its groups wait."""
    return RunList(runs=await runs.of_tenant(store, tenant))


@operation("GET", "/v1/runs/{run}")
async def run_status(store: Store, run: RunRef) -> RunStatus:
    """One run: what it holds, its weight and quotas, and why its groups wait."""
    return await runs.status(store, run)


@operation("PUT", "/v1/runs/{run}")
async def configure_run(store: Store, run: RunRef, settings: RunSettings) -> RunStatus:
    """Set a run's weight and quotas; they take effect within a second, and omitted ones get their default."""
    return await runs.configure(store, run, settings)
