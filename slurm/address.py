"""The address by which other nodes reach this one."""

import fcntl
import socket
import struct
from ipaddress import ip_address
from typing import Final

from prorl_mq.errors import ConfigurationError
from prorl_mq.settings import Setting

SIOCGIFADDR: Final = 0x8915  # netdevice(7)
SOMEWHERE: Final = ("198.51.100.1", 9)  # a documentation address: nothing is sent
INTERFACE: Final = Setting("--interface", "the network interface through which workers reach it, such as ib0")


def address_of(interface: str | None) -> str:
    """The IPv4 address of an interface, as ib0; without one, of that which leads out of this host.

    Raises `ConfigurationError` where no way leads out. A loopback address is given only where its interface is named.
    """
    if interface is not None:
        return _of_interface(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)
            address = str(probe.getsockname()[0])
        except OSError:
            address = ""
    if not address or ip_address(address).is_loopback:
        raise ConfigurationError(
            "this node has no default route, so that other nodes may not reach it: say by which network they do, as in "
            f'interface = "ib0" in the spec (--interface of the task); it has the interfaces {_interfaces()}'
        )
    return address


def _of_interface(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise ConfigurationError(
                f"this node has no address at the interface {name!r}: it has the interfaces {_interfaces()}"
            ) from None
    return socket.inet_ntoa(reply[20:24])


def _interfaces() -> str:
    return ", ".join(name for _, name in socket.if_nameindex())
