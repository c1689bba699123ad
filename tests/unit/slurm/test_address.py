"""A server on a node publishes an address that other nodes can use, or says what is missing."""

import socket
import subprocess
import sys

import pytest

from prorl_mq.errors import ConfigurationError
from slurm.address import address_of

ASK = """
from prorl_mq.errors import ConfigurationError
from slurm.address import address_of
try:
    print(address_of({interface}))
except ConfigurationError as error:
    print(error)
"""
ALONE = ("unshare", "--user", "--map-root-user", "--net")


def said(interface: str | None, *, up: bool = False) -> str:
    """By a node without a network; with `up`, its loopback works."""
    bring = "import subprocess; subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)\n" if up else ""
    command = [*ALONE, sys.executable, "-c", bring + ASK.format(interface=repr(interface))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.process
def test_a_node_without_a_default_route_is_told_to_name_a_network() -> None:
    assert said(None) == (
        "this node has no default route, so that other nodes may not reach it: say by which network they do, as in "
        'interface = "ib0" in the spec (--interface of the task); it has the interfaces lo'
    )


@pytest.mark.process
def test_loopback_is_published_if_it_is_asked_for_by_name() -> None:
    assert said("lo", up=True) == "127.0.0.1"


def test_an_unknown_interface_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError) as refused:
        address_of("ib77")
    assert str(refused.value).endswith(", ".join(name for _, name in socket.if_nameindex()))
