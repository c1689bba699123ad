"""A registry on loopback, and caches of nodes beside it."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox.host import unprivileged
from sandbox.images.cache import ImageCache
from sandbox.images.layers.fetching import Fetching
from sandbox.images.layers.storage import BlobStorage
from sandbox.images.registry.logins import Logins
from tests.support.registry import LoopbackRegistry


class Alone:
    """Leases of a process that shares its storage with nobody."""

    @asynccontextmanager
    async def held(self, what: str) -> AsyncIterator[bool]:
        yield True


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def registry(anyio_backend: str) -> AsyncIterator[LoopbackRegistry]:
    async with LoopbackRegistry() as served:
        yield served


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user of the sandboxes can pass."""
    with tempfile.TemporaryDirectory(prefix="prorl-images-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def cache(place: Path) -> Callable[..., ImageCache]:
    def make(
        node: str = "n1", *, limit_bytes: int = 1 << 30, logins: Logins | None = None,
        mirrors: dict[str, list[str]] | None = None, **more: Any,
    ) -> ImageCache:  # fmt: skip
        fetching = Fetching(
            BlobStorage(place / "blobs"), logins or Logins(), mirrors or {}, Alone(), most_bytes=limit_bytes
        )
        return ImageCache(place / node, [], unprivileged.identity(), limit_bytes, fetching, **more)

    return make
