"""An archive's directory of the test's own, a queue whose store knows it, and the duty that writes it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_mq.archive.shelf import Shelf
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    directory = tmp_path / "archive"
    directory.mkdir()
    return Shelf(directory, "t")


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys, shelf: Shelf) -> AsyncIterator[Queue]:
    client = connect(settings)
    made = Queue(client, keys)
    made.store.archive = shelf.directory
    await made.prepare()
    yield made
    await client.aclose()


@pytest.fixture
async def archiving(queue: Queue, shelf: Shelf) -> AsyncIterator[Archiving]:
    """The duty, whose turns the test makes."""
    made = Archiving(queue.store, shelf)
    yield made
    await made.aclose()
