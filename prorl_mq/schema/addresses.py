"""The address of a backend: scheme, host and port, read by one strict pattern wherever one enters.

`urlsplit` takes user names, backslashes, tabs and port 0, and the resolver takes `127.1`, `2130706433` and `0x7f.1` for
addresses: what this pattern does not match reaches neither.
"""

import ipaddress
import re
from typing import Final, NamedTuple

PORTS: Final = {"http": 80, "https": 443}
OPENAI: Final = "/v1"  # OpenAI clients want it; the routes are found without it
LONGEST_NAME: Final = 253
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")  # as a last label, the resolver reads an address out of it
_PREFIX: Final = r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.~-]+)*"
_ADDRESS: Final = re.compile(
    rf"(?P<scheme>https?)://(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{{1,5}}))?(?P<path>{_PREFIX})/?"
)


class BackendAddress(NamedTuple):
    """The parts of an address. `host` is a name in lower case or an IP address as `ipaddress` writes it."""

    scheme: str
    host: str
    port: int
    prefix: str  # of the paths, behind a proxy; without `/v1`

    @property
    def place(self) -> str:
        """Host and port, in one form for every way to write them."""
        return place(self.host, self.port)


def place(host: str, port: int) -> str:
    """Host and port in one text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(address: str) -> BackendAddress:
    """Raises `ValueError` for what is no address of a backend, or has a host or a port that no client can call."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise _uncallable(address, "it has other parts than these")
    port = int(found["port"]) if found["port"] else PORTS[found["scheme"]]
    if not 1 <= port <= 65535:
        raise _uncallable(address, "a port is from 1 to 65535")
    host = _host(address, found["host"])
    return BackendAddress(found["scheme"], host, port, found["path"].removesuffix(OPENAI))


def _host(address: str, text: str) -> str:
    try:
        if text.startswith("["):
            return str(ipaddress.IPv6Address(text[1:-1]))
        if _NUMBER.fullmatch(text.rpartition(".")[2]):
            return str(ipaddress.IPv4Address(text))
        for label in text.encode("idna").split(b"."):
            if label.startswith(b"xn--"):
                label.decode("idna")
    except ValueError as error:
        raise _uncallable(address, str(error)) from None
    if len(text) > LONGEST_NAME or not NAME.fullmatch(text):
        raise _uncallable(address, "this is no name of a host")
    return text.lower()


def _uncallable(address: str, why: str) -> ValueError:
    return ValueError(f"backend {address[:200]!r} cannot be called: {why}; give it as http://HOST:PORT")
