"""The settings of runs and tenants as they lie in Redis."""

import logging
from typing import TypeVar

import msgspec

from prorl_mq.schema.ids import RunRef, TenantId
from prorl_mq.schema.settings import DEFAULT_RUN, DEFAULT_TENANT, Book, RunSettings, TenantSettings
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.store.run_settings")
T = TypeVar("T")


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


async def of_tenant(store: Store, tenant: TenantId) -> TenantSettings:
    """The settings of one tenant."""
    found = await store.read("HGET", store.keys.tenant_settings, tenant)
    return _decoded([tenant.encode(), found], TenantSettings).get(tenant, DEFAULT_TENANT) if found else DEFAULT_TENANT


async def set_tenant(store: Store, tenant: TenantId, settings: TenantSettings) -> None:
    """Puts them in place of what the tenant had; defaults leave nothing behind."""
    key = store.keys.tenant_settings
    if settings == DEFAULT_TENANT:
        await store.write_surely("HDEL", key, tenant)
    else:
        await store.write_surely("HSET", key, tenant, msgspec.json.encode(settings))


def _decoded(row: list[bytes], kind: type[T]) -> dict[str, T]:
    """Decodes a row of settings. An unreadable value (written by hand) counts as the default: admission continues."""
    found = {}
    for name, text in zip(row[::2], row[1::2], strict=True):
        try:
            found[name.decode()] = msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            log.warning("settings of %s cannot be read and count as defaults: %s", name.decode(), error)
    return found
