"""Which hosts a rollout may reach: what its task lists, of what the operator lets tasks list.

Hosts are named, never written as addresses, and each comes with its port. Every address behind a name is judged as it
is connected to: internal ones are reached only in networks that the operator lists.
"""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from prorl_mq.rules.reach import NEVER, Network, addresses_in, lies_within
from prorl_mq.schema.addresses import LONGEST_NAME, NAME

ANY: Final = "any"
PORT: Final = 443
_TOP: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")  # no last label is read as a part of an address
_PRIVATE: Final[tuple[Network, ...]] = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7"),
    )
)
INTERNAL: Final = (*NEVER, *_PRIVATE)


class NamedHost(NamedTuple):
    """A host by its name, in lower case, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class OperatorList(NamedTuple):
    """The hosts that tasks may list. Empty: none."""

    any: bool = False  # any name, with port 443
    names: frozenset[NamedHost] = frozenset()
    below: frozenset[NamedHost] = frozenset()  # of domains whose hosts may be listed
    networks: tuple[Network, ...] = ()  # whose addresses are reached though they are internal

    def names_it(self, target: NamedHost) -> bool:
        """True if a task may list it."""
        domains = {NamedHost(target.host[at + 1 :], target.port) for at, each in enumerate(target.host) if each == "."}
        return (self.any and target.port == PORT) or target in self.names or not domains.isdisjoint(self.below)

    def reaches(self, address: str) -> bool:
        """True if an address behind a listed name may be connected to."""
        found = addresses_in(ipaddress.ip_address(address.partition("%")[0]))
        return all(lies_within(each, self.networks) or not lies_within(each, INTERNAL) for each in found)


def target(text: str) -> NamedHost:
    """A host that a task lists or a program asks for, NAME or NAME:PORT. Raises `ValueError` for an address.

    >>> target("PyPI.org"), target("localhost:8443")
    (NamedHost(host='pypi.org', port=443), NamedHost(host='localhost', port=8443))
    """
    host, colon, port = text.partition(":")
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else PORT if not colon else 0
    if not 1 <= number <= 65535:
        raise ValueError(f"{text[:200]!r} has no port from 1 to 65535")
    if len(host) > LONGEST_NAME or not NAME.fullmatch(host) or not _TOP.fullmatch(host.rpartition(".")[2]):
        raise ValueError(f"{text[:200]!r} does not name a host: give NAME or NAME:PORT, no address and no pattern")
    return NamedHost(host.lower(), number)


def operator_list(text: str) -> OperatorList:
    """`any`, names, `*.` domains and networks, separated by commas. Raises `ValueError`."""
    made = OperatorList()
    for entry in filter(None, map(str.strip, text.split(","))):
        if entry == ANY:
            made = made._replace(any=True)
        elif entry.startswith("*."):
            made = made._replace(below=made.below | {target(entry[2:])})
        elif "/" in entry:
            made = made._replace(networks=(*made.networks, ipaddress.ip_network(entry)))
        else:
            made = made._replace(names=made.names | {target(entry)})
    return made


def refused(asked: Sequence[str], allowed: OperatorList) -> list[str]:
    """The hosts of a task that it may not list."""
    return [each for each in asked if not allowed.names_it(target(each))]
