"""Clients: each has its own run and pool, named after its address or the name in the path."""

import re
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from api.config import CompatSettings
from api.service import service_of
from api.tokens import Caller
from prorl_mq.schema.ids import RunRef, TenantId, pool_ref, run_ref

_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class CompatClient(NamedTuple):
    """One caller of the contract's routes."""

    tenant: TenantId
    name: str

    @property
    def ref(self) -> str:
        return f"{self.tenant}:{self.name}"

    @property
    def run_id(self) -> str:
        return f"prorl-{self.name}"

    @property
    def run(self) -> RunRef:
        return run_ref(self.tenant, self.run_id)

    @property
    def pool(self) -> str:
        return pool_ref(self.tenant, self.run_id)


def settings_of(request: Request) -> CompatSettings:
    settings = service_of(request).settings.compat
    assert settings is not None
    return settings


def client_of(request: Request) -> CompatClient:
    """Raises `HTTPException`: 403 for an address that is not served, 404 for what is no name."""
    settings, address = settings_of(request), request.client.host if request.client else None
    if not settings.admits(address):
        raise HTTPException(403, f"{address} is not among the addresses that this server accepts requests from")
    name: str = request.path_params.get("client") or (address or "local").replace(":", "-").replace("%", "-")
    if not _NAME.fullmatch(name):
        raise HTTPException(404, "Not Found")
    caller: Caller | None = getattr(request.state, "caller", None)
    return CompatClient(caller.tenant if caller else settings.tenant, name)
