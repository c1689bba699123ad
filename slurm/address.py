"""The address by which other nodes reach this one."""

import fcntl
import socket
import struct
from typing import Final

from prorl_mq.errors import ConfigurationError
from prorl_mq.settings import Setting

SIOCGIFADDR: Final = 0x8915  # netdevice(7)
SOMEWHERE: Final = ("198.51.100.1", 9)  # a documentation address: nothing is sent
INTERFACE: Final = Setting("--interface", "the network interface through which workers reach it, such as ib0")


def address_of(interface: str | None) -> str:
    """The IPv4 address of an interface, as ib0; without one, of that which leads out of this host."""
    if interface is not None:
        return _of_interface(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)
            return str(probe.getsockname()[0])
        except OSError:  # a host without a way out
            return "127.0.0.1"


def _of_interface(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            known = ", ".join(each for _, each in socket.if_nameindex())
            raise ConfigurationError(
                f"this node has no address at the interface {name!r}: it has the interfaces {known}"
            ) from None
    return socket.inet_ntoa(reply[20:24])
