"""Which addresses the backends of a tenant may have: what the operator declared, and what no tenant reaches by default.

A tenant's backend is called from the service's hosts. So loopback, link-local and metadata addresses are not reached,
nor the service's own listeners, however an address is written: every address behind a name is judged, at each connect.
"""

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from prorl_mq import resolver
from prorl_mq.errors import AddressRefused
from prorl_mq.schema.addresses import NAME, BackendAddress, place

ANY: Final = "any"  # declared alone: the operator's own rights
_ENTRY: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:./]+\]|[A-Za-z0-9_.*/-]+)(?::(?P<low>[0-9]{1,5})(?:-(?P<high>[0-9]{1,5}))?)?"
)
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# `is_global` and `is_private` of Python differ between releases, and both know too little: this is a table of its own.
NEVER: Final[tuple[Network, ...]] = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "100.100.100.200/32", "168.63.129.16/32",  # metadata: Alibaba's, Azure's
            "::/128", "::1/128", "fe80::/10", "fec0::/10", "ff00::/8",
            "fd00:ec2::/32", "fd20:ce::254/128",  # metadata: Amazon's, Google's
            "2001::/32", "64:ff9b:1::/48",  # Teredo and local NAT64, which hide an IPv4 address
        ),
    )
)  # fmt: skip
_WRAPPING: Final = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "::ffff:0:0:0/96", "::/96", "64:ff9b::/96")))
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")


class Reach(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Addresses that a tenant's backend may have. `declared` None, as earlier releases stored it: any but those that no
    tenant reaches by default.
    """

    declared: tuple[str, ...] | None = None
    listeners: tuple[str, ...] = ()  # HOST:PORT of the service's own, which nothing opens


class _Entry(NamedTuple):
    """One declared entry: a network or a name, and the ports of it."""

    network: Network | None
    name: str
    low: int
    high: int


def check(text: str) -> None:
    """Raises `ValueError` for what declares no addresses."""
    _entry(text)


def covers(text: str, address: BackendAddress) -> bool:
    """True if an entry names the address as it is written: no name is looked up."""
    entry = _entry(text)
    if not entry.low <= address.port <= entry.high:
        return False
    if entry.network is None:
        return _named(address.host, entry.name)
    try:
        return lies_within(_ip(address.host), [entry.network])
    except ValueError:
        return False  # a name


async def reached(address: BackendAddress, reach: Reach) -> Sequence[str]:
    """The IP addresses of a backend now, all of which its tenant may reach. Raises `AddressRefused`."""
    if address.prefix:
        raise AddressRefused(f"{address.place} is not called: a tenant's address has no path but /v1")
    try:
        found = await resolver.look_up(address.host)
    except (OSError, UnicodeError):
        raise AddressRefused(f"{address.place} is not called: its host has no address") from None
    for each in found:
        if not allowed(address, each, reach):
            raise AddressRefused(
                f"{address.place} is not called: its host is not among those that its tenant may reach"
            )
    return found


def places(address: BackendAddress, found: Sequence[str]) -> tuple[str, ...]:
    """HOST:PORT of a backend's name and of each address behind it, one form for each."""
    ways = [str(way) for each in found for way in addresses_in(_ip(each))]
    return tuple(dict.fromkeys([address.place, *(place(way, address.port) for way in ways)]))


def allowed(address: BackendAddress, found: str, reach: Reach) -> bool:
    """True if one of the addresses behind a host may be called there.

    A name opens no address that is never reached. A network does, if it lies within one of those as a whole.
    """
    ways = addresses_in(_ip(found))
    if any(place(str(way), address.port) in reach.listeners for way in ways):
        return False
    entries = [each for each in map(_entry, reach.declared or ()) if each.low <= address.port <= each.high]
    closed = [way for way in ways if lies_within(way, NEVER)]
    if closed:
        opened = [each.network for each in entries if each.network is not None and opens(each.network)]
        return all(lies_within(way, opened) for way in closed)
    if reach.declared is None:
        return True
    networks = [each.network for each in entries if each.network is not None]
    return any(_named(address.host, each.name) for each in entries) or any(lies_within(way, networks) for way in ways)


def _ip(text: str) -> IpAddress:
    return ipaddress.ip_address(text.partition("%")[0])


def addresses_in(address: IpAddress) -> list[IpAddress]:
    """The address, and the IPv4 address that it carries."""
    if isinstance(address, ipaddress.IPv6Address):
        number = int(address)
        if address in _SIX_TO_FOUR:
            return [address, ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF)]
        if number > 1 and any(address in network for network in _WRAPPING):
            return [address, ipaddress.IPv4Address(number & 0xFFFFFFFF)]
    return [address]


def lies_within(address: IpAddress, networks: Sequence[Network]) -> bool:
    return any(address.version == each.version and address in each for each in networks)


def opens(network: Network) -> bool:
    """True for a network that opens addresses that are else never reached."""
    first, last = network[0], network[-1]
    return any(lies_within(first, [each]) and lies_within(last, [each]) for each in NEVER)


def _named(host: str, name: str) -> bool:
    return bool(name) and (host.endswith(name[1:]) if name.startswith("*.") else host == name)


@lru_cache(1_024)
def _entry(text: str) -> _Entry:
    found = _ENTRY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:200]!r} is no address, network or name, with ports such as :8000 or :8000-8999")
    low = int(found["low"] or 1)
    high = int(found["high"] or found["low"] or 65535)
    if not 1 <= low <= high <= 65535:
        raise ValueError(f"{text[:200]!r}: ports are from 1 to 65535, the lower one first")
    host = found["host"]
    if NAME.fullmatch(host.removeprefix("*.")) and not host.rpartition(".")[2].isdigit():
        return _Entry(None, host.lower(), low, high)
    try:
        return _Entry(ipaddress.ip_network(host.strip("[]")), "", low, high)
    except ValueError as error:
        raise ValueError(f"{text[:200]!r}: {error}; give a network as 10.1.0.0/16:8000 or [fd00:1::/32]:8000") from None
