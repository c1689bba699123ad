"""Tenants: a file has bearer tokens for each and the backends that it may add; a request presents a token."""

import hashlib
import hmac
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from api.problems import Problem
from prorl_mq import local_token
from prorl_mq.errors import ConfigurationError
from prorl_mq.rules import reach
from prorl_mq.schema import forms
from prorl_mq.schema.ids import DEFAULT_TENANT, TenantId
from prorl_mq.schema.messages import Name
from prorl_mq.schema.strict import Misfit, convert


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant of a tokens file. Who presents `read_token` sees all of the tenant's and changes nothing of it.
    `backends`: addresses that it may add, or `any` alone: all, as the operator.
    """

    token: Annotated[str, Meta(pattern=forms.BEARER)]
    read_token: Annotated[str, Meta(pattern=forms.BEARER)] | None = None
    backends: list[str] | None = None

    def __post_init__(self) -> None:
        for each in self.backends or ():
            reach.check(each)
        if self.backends is not None and reach.ANY in self.backends and len(self.backends) > 1:
            raise ValueError(f"{reach.ANY!r} stands alone: it opens every address")


class TokensFile(msgspec.Struct, frozen=True, kw_only=True):
    """`[tenants.NAME]` with `token = "..."` each, and `read_token = "..."` and `backends = [...]` where wanted."""

    tenants: Annotated[dict[Name, TenantEntry], Meta(min_length=1)]

    @property
    def tokens(self) -> dict[str, bytes]:
        """Tenant → SHA-256 of its token."""
        return {tenant: _digest(entry.token) for tenant, entry in self.tenants.items()}

    @property
    def readers(self) -> dict[str, bytes]:
        """Tenant → SHA-256 of the token that reads only."""
        return {tenant: _digest(entry.read_token) for tenant, entry in self.tenants.items() if entry.read_token}

    @property
    def backends(self) -> dict[str, tuple[str, ...] | None]:
        """Tenant → the backends that it may add; None where the file does not say."""
        return {
            tenant: None if entry.backends is None else tuple(entry.backends) for tenant, entry in self.tenants.items()
        }


def load_tenants(path: Path) -> TokensFile:
    """Raises `ConfigurationError`, also where others may read the file; its message holds no token."""
    try:
        found = convert(_parsed(path), TokensFile)
    except OSError as error:
        raise ConfigurationError(f"the tokens file {path} cannot be read: {error.strerror}") from None
    except (Misfit, ValueError) as error:
        raise ConfigurationError(f"the tokens file {path} is wrong: {error}") from None
    if len({*found.tokens.values(), *found.readers.values()}) < len(found.tokens) + len(found.readers):
        raise ConfigurationError(f"the tokens file {path} has one token twice: each opens one thing for one tenant")
    return found


def load_tokens(path: Path) -> dict[str, bytes]:
    """Tenant → SHA-256 of its token. Raises `ConfigurationError`; its message holds no token."""
    return load_tenants(path).tokens


def own_token(state_dir: Path) -> tuple[str, bytes]:
    """The token of a service on loopback that was given none, and its SHA-256. Raises `ConfigurationError`."""
    token = local_token.made(state_dir)
    return token, _digest(token)


class Caller(NamedTuple):
    """Sender of a request, as its token tells."""

    tenant: TenantId
    reads_only: bool = False


def identify(
    authorization: str | None, tokens: Mapping[str, bytes], readers: Mapping[str, bytes] = MappingProxyType({})
) -> Caller:
    """Raises `Problem` (401). Takes the same time for every wrong token."""
    if not tokens:
        return Caller(DEFAULT_TENANT)
    scheme, _, token = (authorization or "").partition(" ")
    shown = _digest(token.strip())
    callers = [
        Caller(TenantId(tenant), known is readers)
        for known in (tokens, readers)
        for tenant, digest in known.items()
        if hmac.compare_digest(digest, shown)
    ]
    if scheme.lower() != "bearer" or not callers:
        said = "the bearer token is unknown" if authorization else "a bearer token is needed"
        raise Problem(401, f"{said}: send Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"})
    return callers[0]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _parsed(path: Path) -> Any:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ConfigurationError(f"the tokens file {path} can be read by others: chmod 600 it")
        text = file.read().decode()
    return msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
