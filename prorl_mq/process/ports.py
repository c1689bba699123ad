"""Ports for servers that are to be started."""

import atexit
import secrets
import socket
from collections import deque
from typing import Final

from prorl_mq.errors import ConfigurationError

# Below those that the kernel gives to whoever connects somewhere, which would take one before its server does.
PORTS: Final = range(20_000, 32_768)
PORTS_TRIED: Final = 100
# Bound, not listened on: a server that reuses addresses, as servers do, can listen there, and nobody else is given it.
_held: Final = deque[socket.socket](maxlen=64)


@atexit.register
def _let_go() -> None:
    for each in _held:
        each.close()


def free_port(address: str = "127.0.0.1") -> int:
    """A port without a listener, which no other process is given by this before its server listens on it; a server that
    is restarted can take it again.
    """
    why = ""
    for _ in range(PORTS_TRIED):
        port = secrets.choice(PORTS)
        probe = socket.socket()
        try:
            probe.bind((address, port))
        except OSError as error:
            why = str(error.strerror)
            probe.close()
        else:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if len(_held) == _held.maxlen:
                _held.popleft().close()
            _held.append(probe)
            return port
    raise ConfigurationError(
        f"no server can listen on {address}: of its ports from {PORTS.start} to {PORTS.stop - 1}, "
        f"{PORTS_TRIED} were tried ({why})"
    )


def require_free(port: int) -> None:
    """Raises `ConfigurationError` if the port has a listener."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(f"port {port} cannot be listened on ({error.strerror}): give another") from None
