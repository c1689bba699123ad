"""The forwarders of a sandbox: what a client does to its connection reaches the other side."""

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from workers.egress import inside as egress
from workers.external import inside as external


@pytest.mark.parametrize("carry", [egress.carry, external.forward])
def test_a_connection_that_is_reset_is_given_up(carry: Callable[[socket.socket, socket.socket], None]) -> None:
    """Though the other side says nothing: else it would count as one of a sandbox's few until it is long idle."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    server, far = socket.socketpair()
    with near, server, far:
        far.settimeout(30)
        both = [threading.Thread(target=carry, args=ends, daemon=True) for ends in ((near, server), (server, near))]
        for thread in both:
            thread.start()
        client.sendall(b"x")
        assert far.recv(1) == b"x"
        far.sendall(b"y")
        assert client.recv(1) == b"y"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert far.recv(1) == b""
        for thread in both:
            thread.join(30)
            assert not thread.is_alive()
