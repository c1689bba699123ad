"""A service of its own for each test, stopped whatever happened to it."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = World(Path(name))
        try:
            yield world
        finally:
            world.stop()
