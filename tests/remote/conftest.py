"""A sandbox server, a client of it, and the same through a network that fails."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.remote.provider import RemoteProvider
from tests.remote.machine import Machine, serving
from tests.support.network import Network, network
from tests.support.world import World


@pytest.fixture
async def machine(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Machine]:
    async with serving(Machine(tmp_path)) as made:
        yield made


@pytest.fixture
async def provider(machine: Machine) -> AsyncIterator[RemoteProvider]:
    made = RemoteProvider("n1", machine.access())
    yield made
    await made.aclose()


@pytest.fixture
async def proxy(machine: Machine) -> AsyncIterator[Network]:
    async with network(machine.address) as made:
        yield made


@pytest.fixture
async def far(machine: Machine, proxy: Network) -> AsyncIterator[RemoteProvider]:
    """Behind the network."""
    made = RemoteProvider("n1", machine.access(url=proxy.address))
    yield made
    await made.aclose()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        made = World(Path(name))
        try:
            yield made
        finally:
            made.stop()
