"""What may be set of a run and of a tenant: weights and quotas. They lie in Redis and hold for all that follows."""

import logging
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from prorl_mq.schema.ids import RunRef, TenantId
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.store.run_settings")
T = TypeVar("T")

Weight = Annotated[float, Meta(ge=0.01, le=100.0)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
UNACKED_BYTES: Final = 4 << 30


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one run. A quota of null is none. Whatever a quota holds back waits in the backlog; nothing is dropped."""

    weight: Weight = 1.0  # against the other runs of the tenant
    eval_share: Annotated[float, Meta(ge=0.01, le=0.99)] = 0.25  # of admitted samples, while both purposes wait
    max_jobs: Count | None = None  # admitted and not ended
    max_unacked_groups: Count | None = None  # admitted and not acknowledged: those that still run count too
    max_unacked_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] = UNACKED_BYTES  # of closed groups; above it none begins


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one tenant, with all of its runs; the operator's."""

    weight: Weight = 1.0  # against the other tenants
    max_jobs: Count | None = None  # admitted and not ended


class Book(NamedTuple):
    """Every setting that is not the default."""

    runs: Mapping[RunRef, RunSettings]
    tenants: Mapping[TenantId, TenantSettings]

    def run(self, run: RunRef) -> RunSettings:
        return self.runs.get(run, DEFAULT_RUN)

    def tenant(self, tenant: TenantId) -> TenantSettings:
        return self.tenants.get(tenant, DEFAULT_TENANT)


async def book(store: Store) -> Book:
    """All settings."""
    keys = store.keys
    runs, tenants = await store.read_many([("HGETALL", keys.run_settings), ("HGETALL", keys.tenant_settings)])
    return Book(
        {RunRef(name): each for name, each in _decoded(runs, RunSettings).items()},
        {TenantId(name): each for name, each in _decoded(tenants, TenantSettings).items()},
    )


async def of_run(store: Store, run: RunRef) -> RunSettings:
    """The settings of one run."""
    found = await store.read("HGET", store.keys.run_settings, run)
    return _decoded([run.encode(), found], RunSettings).get(run, DEFAULT_RUN) if found else DEFAULT_RUN


async def set_tenant(store: Store, tenant: TenantId, settings: TenantSettings) -> None:
    """Puts them in place of what the tenant had; defaults leave nothing behind."""
    key = store.keys.tenant_settings
    if settings == DEFAULT_TENANT:
        await store.write("HDEL", key, tenant, repeat=Repeat.SAME)
    else:
        await store.write("HSET", key, tenant, msgspec.json.encode(settings), repeat=Repeat.SAME)


def _decoded(row: list[bytes], kind: type[T]) -> dict[str, T]:
    """What cannot be read (somebody wrote it by hand) counts as the default, so that admission goes on."""
    found = {}
    for name, text in zip(row[::2], row[1::2], strict=True):
        try:
            found[name.decode()] = msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            log.warning("settings of %s cannot be read and count as defaults: %s", name.decode(), error)
    return found


DEFAULT_RUN: Final = RunSettings()
DEFAULT_TENANT: Final = TenantSettings()
