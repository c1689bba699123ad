"""One cluster for a module's tests, each of which has a namespace of its own."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.cells.stand import Cluster, cluster
from tests.ha.stand import queue_of
from tests.support.queue import Queue

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def here() -> Iterator[Cluster]:
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        yield runner.run(stack.enter_async_context(cluster()))
        runner.run(stack.aclose())


@pytest.fixture
async def queue(here: Cluster) -> AsyncIterator[Queue]:
    made = queue_of(here.settings(f"cell-{next(_NUMBERS)}"))
    yield made
    await made.redis.aclose()
