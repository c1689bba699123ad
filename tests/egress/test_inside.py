"""The forwarders of a sandbox: what a client does to its connection reaches the other side."""

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from workers.egress import forwarding


def test_a_connection_that_is_reset_is_given_up() -> None:
    """Though the other side says nothing: else it would count as one of a sandbox's few until it is long idle."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    server, far = socket.socketpair()
    with near, server, far:
        far.settimeout(30)
        ways = ((near, server), (server, near))
        both = [threading.Thread(target=forwarding.carry, args=ends, daemon=True) for ends in ways]
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


class Twice:
    """A listener that ends its thread when it is asked a third time."""

    def __init__(self, listener: socket.socket) -> None:
        self._accept = iter([listener.accept, listener.accept])

    def accept(self) -> tuple[socket.socket, object]:
        return next(self._accept)()


def test_one_connection_that_cannot_be_joined_is_dropped_and_the_next_one_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where an agent has used up the processes of its sandbox for a while."""
    begun = threading.Thread.start

    def full(_: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", begun)
        raise RuntimeError

    def serve() -> None:
        with contextlib.suppress(StopIteration):
            twice: Any = Twice(listener)
            forwarding.serve(twice, "socket")

    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as there, socket.create_server(("127.0.0.1", 0)) as listener:
        there.bind("socket")
        there.listen()
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        monkeypatch.setattr(threading.Thread, "start", full)
        for expected in (b"", b"x"):
            with socket.create_connection(listener.getsockname(), timeout=30) as client:
                server, _ = there.accept()
                if expected:
                    server.sendall(b"x")
                with contextlib.suppress(ConnectionError):
                    assert client.recv(1) == expected
                server.close()
        serving.join(30)
        assert not serving.is_alive()
