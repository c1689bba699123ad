"""Places where the service itself listens: the API and Redis, which no tenant's backend may be."""

import asyncio
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from api.config import ApiSettings
from prorl_mq import resolver
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.addresses import place
from prorl_mq.servers import Node, servers
from prorl_mq.store.server import primary
from prorl_mq.store.server.connection import OUTAGES

REDIS_PORT: Final = 6379
SIOCGIFADDR: Final = 0x8915  # netdevice(7)


async def listeners(settings: ApiSettings) -> Sequence[str]:
    """HOST:PORT of each, by address. Redis may have moved since the last look."""
    found: list[str] = []
    if settings.uds is None:
        found += [place(each, settings.port) for each in await _addresses(settings.host)]
    for host, port in await _servers(settings):
        found += [place(each, port) for each in await _addresses(host)]
    return found


async def _servers(settings: ApiSettings) -> Sequence[Node]:
    """Redis's servers: every one that the address names, and the primary."""
    nodes: list[Node] = []
    try:
        named = await asyncio.to_thread(lambda: settings.redis.named)
        if (several := servers(named.url)) is not None:
            nodes += several.nodes
        redis = urlsplit((await primary.of(named, settings.redis.namespace)).url)
    except ConfigurationError:  # its rendezvous cannot be read now
        return ()
    except OUTAGES:
        return nodes
    if redis.scheme != "unix" and redis.hostname:
        nodes.append((redis.hostname, redis.port or REDIS_PORT))
    return nodes


async def _addresses(host: str) -> Sequence[str]:
    try:
        found = await resolver.look_up(host)
    except (OSError, UnicodeError):
        return ()
    unspecified = any(ipaddress.ip_address(each.partition("%")[0]).is_unspecified for each in found)
    return [*found, *own_addresses()] if unspecified else found


def own_addresses() -> Iterator[str]:
    """The addresses of this host's interfaces: for IPv4 the first of each."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            yield socket.inet_ntoa(reply[20:24])
    try:
        table = Path("/proc/net/if_inet6").read_text("ascii")
    except OSError:  # a kernel without IPv6
        return
    for line in table.splitlines():
        yield str(ipaddress.IPv6Address(int(line.split()[0], 16)))
