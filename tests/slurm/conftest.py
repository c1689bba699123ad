"""A service of a test's own, made of real processes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = World(Path(name))
        try:
            yield world
        finally:
            world.stop()
