"""One simulated server for the tests of a process."""

from collections.abc import Iterator

import pytest

from tests.simulation.server import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()
