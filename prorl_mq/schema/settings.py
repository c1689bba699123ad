"""Settings of a run and of a tenant: weights and quotas. They hold for all that is submitted later."""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from prorl_mq.schema.ids import RunRef, TenantId

Weight = Annotated[float, Meta(ge=0.01, le=100.0)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one run. A quota of null is none. Whatever a quota holds back waits in the backlog; nothing is dropped."""

    weight: Weight = 1.0  # against the other runs of the tenant
    eval_share: Annotated[float, Meta(ge=0.01, le=0.99)] = 0.25  # of admitted samples, while both purposes wait
    max_jobs: Count | None = None  # admitted and not ended
    max_unacked_groups: Count | None = None  # admitted and not acknowledged: those that still run count too
    # Of closed groups; above it none begins. Null: a quarter of Redis's maxmemory, or 4 GiB where it has none.
    max_unacked_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] | None = None
    # How long the archive, where there is one, keeps its closed groups; 0: it takes none of them. Null: 30 days.
    archive_days: Annotated[int, Meta(ge=0, le=36_500)] | None = None
    archive_bytes: Annotated[int, Meta(ge=1, le=1 << 60)] | None = (
        None  # on its disk; above it the oldest go. Null: 64 GiB
    )


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one tenant, with all of its runs; the operator's."""

    weight: Weight = 1.0  # against the other tenants
    max_jobs: Count | None = None  # admitted and not ended
    max_unacked_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] | None = None  # of closed groups of all its runs


class Book(NamedTuple):
    """Every setting that is not the default."""

    runs: Mapping[RunRef, RunSettings]
    tenants: Mapping[TenantId, TenantSettings]

    def run(self, run: RunRef) -> RunSettings:
        return self.runs.get(run, DEFAULT_RUN)

    def tenant(self, tenant: TenantId) -> TenantSettings:
        return self.tenants.get(tenant, DEFAULT_TENANT)


DEFAULT_RUN: Final = RunSettings()
DEFAULT_TENANT: Final = TenantSettings()
