"""Files in a directory of the test's own, and a queue whose store knows it."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.files import OWNER, PayloadFiles
from prorl_mq.store.payloads.name import PayloadFile
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue

TENANT = "acme"  # whose runs `Queue` has
OLD_S = 3 * 3600.0


@pytest.fixture
def files(tmp_path: Path) -> PayloadFiles:
    directory = tmp_path / "payloads"
    directory.mkdir(mode=0o700)
    return PayloadFiles(directory, "t")


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys, files: PayloadFiles) -> AsyncIterator[Queue]:
    client = connect(settings)
    made = Queue(client, keys)
    made.store.payloads = files
    await made.prepare()
    yield made
    await client.aclose()


def age(files: PayloadFiles, name: PayloadFile, tenant: str = TENANT, seconds: float = OLD_S) -> None:
    """As if the file had been put long ago."""
    at = time.time() - seconds
    os.utime(files.path(tenant, name), (at, at))


def under(directory: Path) -> set[str]:
    """Every file below a directory, but for the mark of its owner."""
    found = {path for path in directory.rglob("*") if path.is_file() and path.name != OWNER}
    return {str(path.relative_to(directory)) for path in found}
