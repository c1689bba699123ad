"""Fetches an image's blobs into the storage: each once, continued at the byte where somebody stopped, and checked."""

import asyncio
import errno
import hashlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import aiohttp

from sandbox.errors import ImageUnavailable
from sandbox.images.layers.storage import BlobStorage
from sandbox.images.registry.client import RegistryClient
from sandbox.images.registry.logins import Logins
from sandbox.images.registry.manifest import ACCEPTED, Descriptor, Manifest, parse
from sandbox.images.registry.reference import ImageName, RegistryPlace, reference

AT_ONCE: Final = 3  # blobs of one image
SLOW_S: Final = 60.0
LEAST_BYTES: Final = 600_000  # in that time
LOOK_S: Final = 0.3  # at a blob that another process fetches
Count = Callable[[int], None]
T = TypeVar("T")


class Leases(Protocol):
    """Leases on blobs: one process fetches each, among all that share a storage."""

    def held(self, what: str) -> AbstractAsyncContextManager[bool]:
        """True if it is the caller's until the end of the block, which is cancelled where the lease is lost."""
        ...


class Fetched(NamedTuple):
    """An image whose blobs are all in the storage."""

    digest: str
    manifest: Manifest


class FetchProgress:
    """Bytes of a fetch so far; `done` reads the storage, so that what other nodes fetch counts too."""

    def __init__(self, storage: BlobStorage) -> None:
        self._storage = storage
        self._sizes: dict[str, int] = {}
        self.unpacking = False

    def begin(self, manifest: Manifest) -> None:
        self._sizes = {each.digest: each.size for each in (manifest.config, *manifest.layers)}

    @property
    def total(self) -> int:
        """0: not known yet."""
        return sum(self._sizes.values())

    def done(self) -> int:
        """Blocks."""
        return sum(min(size, self._storage.bytes_of(digest)) for digest, size in self._sizes.items())


class Fetching:
    """`most_bytes` bounds an image, as it is sent; `count` is told of bytes that were received."""

    def __init__(
        self, storage: BlobStorage, logins: Logins, mirrors: Mapping[str, Sequence[str]], leases: Leases, *,
        most_bytes: int, count: Count = lambda _: None,
    ) -> None:  # fmt: skip
        self.storage = storage
        self._logins = logins
        self._mirrors = mirrors
        self._leases = leases
        self._most_bytes = most_bytes
        self._count = count

    async def fetch(self, text: str, key: str, progress: FetchProgress) -> Fetched:
        """All blobs of an image. Raises `ImageUnavailable` if it cannot be had."""
        await _on_disk(self.storage.identity)
        named = reference(text)
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            source = _Source(RegistryClient(http, self._logins), named.places(self._mirrors))
            digest, manifest = await self._manifest(source, named, key, text)
            if manifest.bytes_total > self._most_bytes:
                raise ImageUnavailable(
                    f"{text} has {manifest.bytes_total} bytes, over the {self._most_bytes} that the storage may have "
                    "(PRORL_IMAGES_BYTES)", final=True,
                )  # fmt: skip
            progress.begin(manifest)
            limit = asyncio.Semaphore(AT_ONCE)

            async def blob(each: Descriptor) -> None:
                async with limit:
                    await self._blob(source, each)

            different = {each.digest: each for each in (manifest.config, *manifest.layers)}.values()
            await _all([blob(each) for each in different])
        return Fetched(digest, manifest)

    async def _manifest(self, source: "_Source", named: ImageName, key: str, about: str) -> tuple[str, Manifest]:
        """Of what the name meant first, wherever it was asked for: nodes that share a storage run the same image."""
        want = await _on_disk(lambda: self.storage.resolved(key)) or named.want
        for _ in range(3):  # an index, its manifest
            data = await self._manifest_bytes(source, want)
            found = parse(data, about)
            if isinstance(found, Manifest):
                digest = _digest_of(data)
                kept = await _on_disk(partial(self.storage.resolve, key, digest))
                if kept == digest:
                    return digest, found
                want = kept
            else:
                want = found.digest
        raise ImageUnavailable(f"{about} leads from one index to another", final=True)

    async def _manifest_bytes(self, source: "_Source", want: str) -> bytes:
        if not want.startswith("sha256:"):
            return await source.manifest(want)
        if not await _on_disk(lambda: self.storage.has(want)):
            data = await source.manifest(want)
            await _on_disk(lambda: self.storage.put(want, data))
        return await _on_disk(self.storage.path(want).read_bytes)

    async def _blob(self, source: "_Source", blob: Descriptor) -> None:
        """Waits where another process fetches it; continues where that one ended."""
        what = f"{await _on_disk(self.storage.identity)}:{blob.digest}"
        while not await _on_disk(lambda: self.storage.has(blob.digest)):
            async with self._leases.held(what) as ours:
                if ours and not await _on_disk(lambda: self.storage.has(blob.digest)):
                    await self._receive(source, blob)
                    return
            await asyncio.sleep(LOOK_S)

    async def _receive(self, source: "_Source", blob: Descriptor) -> None:
        """A part of an earlier process may be damaged: then the blob is fetched once more from its beginning."""
        part = self.storage.part(blob.digest)
        for _ in range(2):
            begun = await _on_disk(lambda: self.storage.bytes_of(blob.digest))
            if begun > blob.size:
                await _on_disk(lambda: part.unlink(missing_ok=True))
                begun = 0
            if begun < blob.size or blob.size == 0:
                await source.blob(blob, part, begun, self._count)
            if await _on_disk(lambda: self.storage.finish(blob.digest)):
                return
            if begun == 0:
                break
        raise ImageUnavailable(f"what came for {blob.digest} has another digest: its registry is damaged", final=True)


class _Source:
    """The places of one image; the first that has what is asked for gives it."""

    def __init__(self, client: RegistryClient, places: Sequence[RegistryPlace]) -> None:
        self._client = client
        self._places = places

    async def manifest(self, want: str) -> bytes:
        error: ImageUnavailable | None = None
        for place in self._places:
            try:
                data, _ = await self._client.small(place, f"manifests/{want}", ACCEPTED)
            except ImageUnavailable as failed:
                error = failed
            else:
                return data
        assert error is not None
        raise error

    async def blob(self, blob: Descriptor, part: Path, begun: int, count: Count) -> None:
        """From the byte `begun` on; from the first one where a place gives no ranges."""
        error: ImageUnavailable | None = None
        for place in self._places:
            try:
                await self._blob_of(place, blob, part, begun, count)
            except ImageUnavailable as failed:
                error = failed
            else:
                return
        assert error is not None
        raise error

    async def _blob_of(self, place: RegistryPlace, blob: Descriptor, part: Path, begun: int, count: Count) -> None:
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        async with self._client.get(place, f"blobs/{blob.digest}", headers) as answer:
            at = begun if answer.status == 206 else 0
            if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                raise ImageUnavailable(f"{place.base} sends another range of {blob.digest} than was asked for")
            with _Part(part) as out:
                since, counted = monotonic(), at
                async for chunk in answer.content.iter_chunked(1 << 18):
                    if monotonic() - since > SLOW_S:
                        if at - counted < LEAST_BYTES:  # others wait for its place, and for its lease on the blob
                            raise ImageUnavailable(
                                f"{place.base} sent {at - counted} bytes in {SLOW_S:.0f} s: too slow"
                            )
                        since, counted = monotonic(), at
                    if at + len(chunk) > blob.size:
                        raise ImageUnavailable(f"{blob.digest} is longer than its {blob.size} bytes", final=True)
                    await out.write(chunk, at)
                    at += len(chunk)
                    count(len(chunk))
        if at < blob.size:
            raise ImageUnavailable(f"{place.base} ended {blob.digest} after {at} of {blob.size} bytes")


class _Part:
    """The file of a blob that is not whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _of_disk(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    async def write(self, data: bytes, at: int) -> None:
        """Ends when the write has: a descriptor that is closed under a thread may be another file's by then."""
        writing = asyncio.ensure_future(_on_disk(lambda: _write_all(self._descriptor, data, at)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written


async def _on_disk(call: Callable[[], T]) -> T:
    """A call that blocks, for storage may be far away. A fault of the disk ends in `ImageUnavailable`."""
    try:
        return await asyncio.to_thread(call)
    except OSError as error:
        raise _of_disk(error) from error


def _of_disk(error: OSError) -> ImageUnavailable:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    hint = "; make room, or set PRORL_IMAGES_BYTES lower" if full else ""
    return ImageUnavailable(f"the storage of images at {error.filename or 'its place'}: {error.strerror}{hint}")


async def _all(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """The first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed


def _digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
