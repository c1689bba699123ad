"""The configuration of the ingress: flags, else environment; every fault is reported together."""

import argparse
import enum
import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from api.tokens import TokensFile, load_tenants
from prorl_mq.errors import ConfigurationError
from prorl_mq.local_token import is_loopback
from prorl_mq.process.backend_keys import keys_from
from prorl_mq.process.redis_server import SOCKET_PATH_LIMIT
from prorl_mq.rules import reach
from prorl_mq.schema.ids import DEFAULT_TENANT, TenantId
from prorl_mq.servers import fault
from prorl_mq.settings import NAMESPACE as NAMESPACE_FLAG
from prorl_mq.settings import OPEN, REDIS, RENDEZVOUS, STATE_DIR, Setting, add
from prorl_mq.store.server.connection import RedisSettings

MIB: Final = 1 << 20
COMPAT_PORT: Final = 8006
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class Durability(enum.StrEnum):
    """When something is accepted, which `--durability` names."""

    STORED = "stored"
    SYNCED = "synced"
    REPLICATED = "replicated"
    REPLICATED_SYNCED = "replicated+synced"


def mode(text: str) -> Durability:
    """Raises `ArgumentTypeError`, whose text argparse shows, for another word."""
    if text not in list(Durability):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(Durability)}")
    return Durability(text)


def integer(text: str) -> str:
    """The text as it is: `ApiSettings` is made of all of them at once, so that one message names every fault."""
    return text


SETTINGS: Final = (
    REDIS,
    RENDEZVOUS,
    NAMESPACE_FLAG,
    Setting("--host", "address to listen on", default="127.0.0.1", variable="PRORL_API_HOST"),
    Setting(
        "--port", f"port to listen on, 0 takes a free one and prints it; else 8080, {COMPAT_PORT} with --compat",
        type=integer, variable="PRORL_API_PORT",
    ),
    Setting("--uds", "Unix socket to listen on, in place of host and port", variable="PRORL_API_UDS"),
    Setting(
        "--durability",
        "what an answer waits for: `stored` in Redis; `synced`, a submission is on Redis's disk (WAITAOF); "
        "`replicated`, Redis's replicas have it; `replicated+synced`, on their disks. Not given: what an API process "
        "was given last",
        type=mode, metavar="MODE", variable="PRORL_DURABILITY",
    ),
    Setting(
        "--tokens", "TOML or JSON file with bearer tokens for each tenant, and the backends that it may add",
        variable="PRORL_TOKENS",
    ),
    replace(STATE_DIR, help="directory of the token that is asked for on loopback where --tokens gives none"),
    OPEN,
    Setting(
        "--max-body-bytes", "largest request body", type=integer, default=str(16 * MIB), unit="bytes",
        variable="PRORL_MAX_BODY_BYTES",
    ),
    Setting("--compat", "the routes of ProRL Agent v1 in place of the native ones", choices=("prorl",)),
    Setting(
        "--compat-tenant", "owner of the jobs that callers of the compatible routes start",
        variable="PRORL_COMPAT_TENANT",
    ),
    Setting("--compat-allow", "addresses served there, as 10.1.0.0/16,10.2.3.4", variable="PRORL_COMPAT_ALLOW"),
    Setting(
        "--compat-timeout", "limit of each stage of a job that is submitted there", type=integer, default="300",
        unit="s", variable="PRORL_COMPAT_TIMEOUT",
    ),
)  # fmt: skip


class CompatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the compatible routes. `allowed` empty: anyone who reaches the process, then only on loopback."""

    tenant: TenantId = DEFAULT_TENANT
    allowed: tuple[str, ...] = ()
    timeout_s: int = 300  # of each stage; the contract's `--timeout`

    def admits(self, address: str | None) -> bool:
        """True if a caller at this address is served. A Unix socket has no addresses: its file mode decides."""
        if address is None or not self.allowed:
            return True
        caller = ipaddress.ip_address(address.partition("%")[0])
        mapped = getattr(caller, "ipv4_mapped", None)
        return any((mapped or caller) in network for network in networks(self.allowed))


def networks(texts: Sequence[str]) -> list[Network]:
    """Raises `ConfigurationError` naming the text that is no network."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigurationError(f"--compat-allow {text!r}: {error}; give addresses like 10.1.0.0/16") from None
    return found


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one API process. `tokens` maps a tenant to its token's SHA-256; empty: every caller is `default`."""

    redis: RedisSettings
    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    tokens: Mapping[str, bytes] = {}
    readers: Mapping[str, bytes] = {}  # tenant → SHA-256 of the token that reads only
    tokens_file: Path | None = None  # they were read from it, and are read again when it changes
    state_dir: Path | None = None  # whose token is asked for; None: none but `tokens`
    backends: Mapping[str, tuple[str, ...] | None] = {}  # what each tenant may add; None: the file does not say
    max_body_bytes: int = 16 * MIB
    durability: Durability | None = None  # None: as another process has set it
    outage_ms: int = 5_000  # how long one request waits for Redis before it is answered with 503
    name: str = "api"
    compat: CompatSettings | None = None  # None: the native interface

    @property
    def synced(self) -> bool:
        """True if submissions are accepted when they are on Redis's disk."""
        return self.durability is Durability.SYNCED

    @property
    def local(self) -> bool:
        """True if only this machine can reach the process."""
        return self.uds is not None or is_loopback(self.host)


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Flags whose defaults come from the environment. Numbers are checked later, with everything else."""
    made = argparse.ArgumentParser(prog="prorl-api", description="The HTTP ingress and its maintenance duties.")
    add(made, SETTINGS, environ)
    return made


def settings_from(argv: Sequence[str], environ: Mapping[str, str]) -> ApiSettings:
    """Raises `ConfigurationError` with every fault that was found."""
    given = parser(environ).parse_args(argv)
    faults: list[str] = []
    local = given.uds is not None or is_loopback(given.host)
    compat = _compat(given, faults, local=local) if given.compat else None
    tenants = _tenants(given, faults, local=local or compat is not None)
    backends = dict(tenants.backends) if tenants else {}
    by_token = tenants is not None and (compat is None or not given.compat_tenant)
    if compat and not local and not by_token:
        said = backends.get(compat.tenant)
        backends[compat.tenant] = _served(compat) if said is None else said
    faults += _redis_faults(given.redis, given.rendezvous, given.namespace) + _socket_faults(given.uds)
    given.port = given.port or str(COMPAT_PORT if compat else 8080)
    port = _whole(given, "port", 0, 65535, faults)
    body = _whole(given, "max_body_bytes", 1024, 1 << 30, faults)
    try:
        keys_from(environ)  # the duties read it again: a wrong one is said here, with every other fault
    except ConfigurationError as error:
        faults.append(str(error))
    if given.open and given.tokens:
        faults.append("--open asks for no token, and --tokens for one: leave one of them out")
    if faults:
        raise ConfigurationError("\n".join(faults))
    own = local and given.uds is None and not given.open and not (given.tokens and by_token)
    return ApiSettings(
        redis=RedisSettings(
            url=given.redis or "",
            rendezvous=Path(given.rendezvous) if given.rendezvous else None,
            namespace=given.namespace,
            username=environ.get("PRORL_REDIS_USERNAME"),
            password=environ.get("PRORL_REDIS_PASSWORD"),
            kept=True,
        ),
        host=given.host,
        port=port,
        uds=given.uds,
        tokens=tenants.tokens if tenants and by_token else {},
        readers=tenants.readers if tenants and not compat else {},
        tokens_file=Path(given.tokens) if tenants and by_token else None,
        state_dir=given.state_dir if own else None,
        backends=backends,
        max_body_bytes=body,
        durability=given.durability,
        outage_ms=60_000 if compat else 5_000,  # a caller that blocks anyway sees an outage as latency
        name=f"api@{socket.gethostname()}:{os.getpid()}",
        compat=compat,
    )


def _tenants(given: argparse.Namespace, faults: list[str], *, local: bool) -> TokensFile | None:
    if given.tokens is not None:
        try:
            return load_tenants(Path(given.tokens))
        except ConfigurationError as error:
            faults.append(str(error))
    elif not local:
        faults.append(
            f"--host {given.host} can be reached from other machines, so it needs --tokens FILE: "
            "give one, or listen on 127.0.0.1"
        )
    return None


def _compat(given: argparse.Namespace, faults: list[str], *, local: bool) -> CompatSettings:
    """The contract has no authentication: beyond this machine tokens are in paths, or one tenant serves addresses."""
    allowed = tuple(text.strip() for text in (given.compat_allow or "").split(",") if text.strip())
    if not local and not (given.compat_tenant and allowed) and (given.compat_tenant or not given.tokens):
        faults.append(
            f"--compat {given.compat} on --host {given.host} needs --compat-tenant and --compat-allow, or --tokens "
            "without a tenant: give these, or listen on 127.0.0.1"
        )
    if given.compat_tenant and not NAMESPACE.fullmatch(given.compat_tenant):
        faults.append(f"--compat-tenant {given.compat_tenant!r} may have letters, digits, '_', '.', '-' only")
    try:
        networks(allowed)
    except ConfigurationError as error:
        faults.append(str(error))
    timeout_s = _whole(given, "compat_timeout", 1, 10 * 24 * 3600, faults)
    return CompatSettings(tenant=TenantId(given.compat_tenant or DEFAULT_TENANT), allowed=allowed, timeout_s=timeout_s)


def _served(compat: CompatSettings) -> tuple[str, ...]:
    """Backends that callers without a token may add: those in the networks that they may call from. Who calls from this
    machine opens it to nobody else.
    """
    try:
        found = [each for each in networks(compat.allowed) if not reach.opens(each)]
    except ConfigurationError:
        return ()  # it is among the faults
    return tuple(f"[{each}]" if each.version == 6 else str(each) for each in found)


def _redis_faults(url: str | None, rendezvous: str | None, namespace: str) -> list[str]:
    faults = []
    if not url and not rendezvous:
        faults.append("there is no Redis server to use: give --redis URL or set PRORL_REDIS")
    elif url and (wrong := fault(url)):
        faults.append(f"--redis {wrong}")
    if not NAMESPACE.fullmatch(namespace):
        faults.append(f"--namespace {namespace!r} may have letters, digits, '_', '.', '-' only, 64 at most")
    return faults


def _socket_faults(path: str | None) -> list[str]:
    if path is None:
        return []
    faults = []
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        faults.append(f"--uds {path} is too long for a Unix socket: {SOCKET_PATH_LIMIT} bytes at most")
    if not Path(path).absolute().parent.is_dir():
        faults.append(f"--uds {path}: its directory does not exist")
    return faults


def _whole(given: Any, name: str, least: int, most: int, faults: list[str]) -> int:
    text = str(getattr(given, name))
    if text.isascii() and text.isdigit() and least <= int(text[:18]) <= most:
        return int(text)
    faults.append(f"--{name.replace('_', '-')} {text!r} is not a whole number from {least} to {most}")
    return least
