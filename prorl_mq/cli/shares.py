"""`prorl-mq run` and `tenant`: weights and quotas, shown and changed."""

import argparse
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from prorl_mq.cli.looking import run_table, service_redis, settings_text
from prorl_mq.cli.reaching import reach
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.screen.tables import json_text, table
from prorl_mq.schema.ids import TenantId
from prorl_mq.schema.settings import RunSettings, TenantSettings
from prorl_mq.schema.strict import Misfit, convert
from prorl_mq.store import run_settings

FAULTS = (ConfigurationError,)
T = TypeVar("T", bound=msgspec.Struct)


async def run(given: argparse.Namespace) -> int:
    await {"run": _run, "tenant": _tenant}[given.command](given)
    return 0


async def _run(given: argparse.Namespace) -> None:
    changes = _changes(given, RunSettings)
    async with reach(given, patience_s=5) as client:
        found = await client.runs()
        known, lost = {each.run_id: each for each in found}, ", ".join(found.unavailable)
        if given.name is not None and given.name not in known and lost:  # its settings are not known to be the defaults
            raise ConfigurationError(
                f"cell {lost} does not answer, and may have run {given.name!r}: try again when it does"
            )
        if lost:
            print(f"prorl-mq: cell {lost} does not answer: its runs are missing here", file=sys.stderr)
        if given.name is None:
            print(json_text(list(known.values())) if given.json else run_table(known))
            return
        if changes:
            now = known[given.name].settings if given.name in known else RunSettings()
            known[given.name] = await client.configure_run(given.name, _changed(now, changes))
    if given.name not in known:
        raise ConfigurationError(f"there is no run {given.name!r}: there are {', '.join(known) or 'none'}")
    one = known[given.name]
    print(json_text(one) if given.json else run_table({given.name: one}))


async def _tenant(given: argparse.Namespace) -> None:
    changes = _changes(given, TenantSettings)
    async with service_redis(given) as store:
        tenants = dict((await run_settings.book(store)).tenants)
        if given.name is not None:
            name = _tenant_id(given.name)
            tenants = {name: _changed(tenants.get(name, TenantSettings()), changes)}
            if changes:
                await run_settings.set_tenant(store, name, tenants[name])
    if given.json:
        print(json_text(tenants))
        return
    shown = [(name, each.weight, settings_text(each)) for name, each in tenants.items()]
    print(table(("tenant", "weight", "settings"), shown) if shown else "every tenant has weight 1 and no quota")


def _tenant_id(name: str) -> TenantId:
    if not re.fullmatch(r"[A-Za-z0-9_.\-]{1,96}", name):
        raise ConfigurationError(f"{name!r} is not a valid tenant: names have letters, digits, '_', '.', '-' only")
    return TenantId(name)


def _changes(given: argparse.Namespace, kind: type[msgspec.Struct]) -> dict[str, Any]:
    changes = {name: value for name, value in vars(given).items() if name in kind.__struct_fields__}
    if changes and given.name is None:
        raise ConfigurationError(f"say which {given.command} is to have {', '.join(changes)}")
    return changes


def _changed(settings: T, changes: Mapping[str, Any]) -> T:
    try:
        return convert({**msgspec.structs.asdict(settings), **changes}, type(settings))
    except Misfit as error:
        raise ConfigurationError(str(error)) from None
