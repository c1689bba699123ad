"""Settings of a process that serves a compatibility contract."""

import ipaddress
from collections.abc import Sequence
from typing import Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.ids import DEFAULT_TENANT, TenantId

PORT: Final = 8006
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class CompatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed` empty: whoever reaches the process, which then listens on loopback only."""

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
