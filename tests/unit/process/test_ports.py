"""Ports for servers are none that the kernel may give away before the server is up."""

import socket

import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.ports import free_port, require_free


def test_a_port_is_below_those_that_linux_gives_to_whoever_connects() -> None:
    assert max(free_port() for _ in range(200)) < 32_768


def test_a_port_is_kept_for_the_server_that_will_listen_on_it() -> None:
    """Else two services that start at once are given one port."""
    port = free_port()
    with socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    for _ in range(2):  # the server that it is for, and that server started again
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            assert client.getpeername() == server.getsockname()


def test_a_port_that_somebody_listens_on_is_refused_by_its_number() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} cannot be listened on"):
            require_free(port)


def test_an_address_that_is_not_of_this_host_is_named_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match=r"no server can listen on 198\.51\.100\.1.*\(Cannot assign"):
        free_port("198.51.100.1")
