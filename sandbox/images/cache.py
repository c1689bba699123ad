"""The images of this node: each source is fetched once, becomes a directory, and stays until its space is needed.

DIRECTORY/KEY/lock         its modification time is the last use; locked exclusively: being made or removed
DIRECTORY/KEY/image        what sandboxes run; appears whole or not at all
DIRECTORY/KEY/bytes        its size, without what it shares with its layers
DIRECTORY/KEY/source       the name that it was fetched by
DIRECTORY/KEY/layers       the entries of its layers, whose files it shares; of a registry's image alone
DIRECTORY/KEY/config.json  how the image is run; of a registry's image alone
DIRECTORY/layer-HEX        an entry of the same form: one layer, unpacked once for all images that have it
DIRECTORY/.removed-*       what is being removed

Whoever uses an image holds the lock shared. A sandbox's own processes inherit it, so that the kernel takes an image out
of use when its last sandbox ends, whoever died before. An image that is in use is never removed, nor one that `keep`
names, nor a layer of an image that stays.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from sandbox.errors import ImageUnavailable, SandboxError, SandboxUnavailable
from sandbox.host.reachable import is_open
from sandbox.host.trees import remove_tree
from sandbox.images import entry as entries
from sandbox.images.entry import CacheEntry, bytes_of, is_entry, open_lock, remove_unused
from sandbox.images.environment import CONFIGURATION, variables
from sandbox.images.file_lock import lock, try_lock
from sandbox.images.layers.fetching import Fetched, Fetching, FetchProgress
from sandbox.images.layers.running import merge, unpack, weigh
from sandbox.images.layers.tar import Bounds
from sandbox.images.registry.manifest import Descriptor
from sandbox.images.settings import LIMIT_BYTES
from sandbox.images.settings import limit_bytes as limit_bytes  # noqa: PLC0414 - isolators look for it here
from sandbox.images.source import ImageSource, image_source
from sandbox.images.tool import call

LAYER: Final = "layer-"
MOST_ENTRIES: Final = 2_000_000
UNSQUASHFS: Final = ("lib/*/apptainer/bin/unsquashfs", "libexec/apptainer/bin/unsquashfs")  # below its prefix
Make = Callable[[Path, Path], Awaitable[None]]  # of an entry, and its directory `fresh`, in which `image` is made
Keep = Callable[[], Awaitable[Collection[str]]]
log = logging.getLogger(__name__)


class Image:
    """An image in use: until `close`, and for as long as a process has inherited `descriptor`."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self.descriptor = descriptor  # None: not one of the cache

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


async def nothing() -> Collection[str]:
    """Nothing is kept but what is in use."""
    return ()


class ImageCache:
    """`command` starts Apptainer, as the user (uid, gid) that will run the images. `fetching` gets those of registries;
    None: Apptainer does. `keep` says the keys of images that stay, whether they are in use or not.
    """

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        user: tuple[int, int],
        limit_bytes: int = LIMIT_BYTES,
        fetching: Fetching | None = None,
        keep: Keep = nothing,
    ) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._command = command
        self._user = user
        self._fetching = fetching
        self._keep = keep

    def has(self, key: str) -> bool:
        """True if an image is there. Blocks."""
        return (self.directory / key / "image").is_dir()

    def hold(self, key: str) -> Image | None:
        """An image that is there, in use until it is closed; None while it is made or removed, and where it is not."""
        entry = self.directory / key
        try:
            descriptor = os.open(entry / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if try_lock(descriptor, exclusive=False) and is_entry(entry, descriptor) and (entry / "image").is_dir():
            return Image(entry / "image", descriptor)
        os.close(descriptor)
        return None

    async def fetch(self, text: str, progress: FetchProgress | None = None) -> Image:
        """The image of a source, fetched if nobody has yet; concurrent calls, also of other processes, share it.

        Raises `SandboxError` with the words of what fetched it.
        """
        source = await asyncio.to_thread(image_source, text)

        async def make(entry: Path, fresh: Path) -> None:
            if source.is_artifact and self._fetching is not None:
                await self._make_of_artifact(self._fetching, source, fresh, progress)
            elif source.of_registry and self._fetching is not None:
                await self._make_of_layers(self._fetching, source, entry, fresh, progress)
            else:
                await self._build(source, fresh)

        try:
            return await self._held(source.key, make, source.uri)
        except ImageUnavailable as error:
            raise ImageUnavailable(
                f"the image {source.uri} cannot be had: {error}", final=not error.retryable
            ) from error
        except SandboxError as error:
            raise SandboxError(f"the image {source.uri} cannot be fetched: {error}") from error

    async def make_room(self) -> bool:
        """Removes the least recently used until the rest fits; also what was left half made. False: it does not fit,
        for images that `keep` names are in the way.
        """
        keep = await self._keep()
        return await asyncio.to_thread(self._make_room, keep)

    async def drop_layers(self) -> int:
        """Removes the layers that no image shares, whether there is room or not; so many bytes."""

        def drop() -> int:
            found = entries.look(self.directory)
            return self._drop_layers(found, [each for each in found if not each.path.name.startswith(LAYER)], set())

        return await asyncio.to_thread(drop)

    async def _held(self, key: str, make: Make, source: str) -> Image:
        entry = self.directory / key
        while True:
            descriptor = open_lock(entry)
            try:
                await lock(descriptor, exclusive=False)
                if is_entry(entry, descriptor) and (entry / "image").is_dir():
                    now_ns = time.time_ns()  # the file system's own clock is coarse
                    os.utime(descriptor, ns=(now_ns, now_ns))
                    return Image(entry / "image", descriptor)
                await lock(descriptor, exclusive=True)
                if is_entry(entry, descriptor) and not (entry / "image").is_dir():
                    await self._make(entry, make, source)
                    if not key.startswith(LAYER):
                        await self.make_room()
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    async def _make(self, entry: Path, make: Make, source: str) -> None:
        fresh = entry / "fresh"
        await asyncio.to_thread(remove_tree, fresh)  # of one that was cut short
        try:
            fresh.mkdir()
            os.chown(fresh, *self._user)
            await make(entry, fresh)
            size = await asyncio.to_thread(lambda: bytes_of(fresh / "image", shared=(entry / "layers").exists()))
            (entry / "bytes").write_text(str(size), encoding="utf-8")
            (entry / "source").write_text(source, encoding="utf-8")
            (fresh / "image").rename(entry / "image")
        finally:
            await asyncio.shield(asyncio.to_thread(remove_tree, fresh))

    async def _make_of_layers(
        self, fetching: Fetching, source: ImageSource, entry: Path, fresh: Path, progress: FetchProgress | None
    ) -> None:
        progress = progress or FetchProgress(fetching.storage)
        fetched = await fetching.fetch(source.uri, source.key, progress)
        progress.unpacking = True
        config = await asyncio.to_thread(fetching.storage.path(fetched.manifest.config.digest).read_bytes)
        variables(config, source.uri)
        (entry / CONFIGURATION).write_bytes(config)
        held = await self._layers(fetching, fetched)
        try:
            names = [image.path.parent.name for image in held]
            (entry / "layers").write_text("\n".join(names), encoding="utf-8")
            await merge([image.path.parent for image in held], fresh, self._user)
        finally:
            for image in held:
                image.close()
        await asyncio.to_thread(fetching.storage.make_room, self.limit_bytes)

    async def _make_of_artifact(
        self, fetching: Fetching, source: ImageSource, fresh: Path, progress: FetchProgress | None
    ) -> None:
        """Apptainer unpacks the file, once it is known to be one: anything else it would take for a recipe."""
        progress = progress or FetchProgress(fetching.storage)
        fetched = await fetching.fetch(source.uri, source.key, progress)
        progress.unpacking = True
        blob = fetching.storage.path(fetched.manifest.layers[0].digest)
        try:
            file = await asyncio.to_thread(image_source, str(blob))
        except SandboxError as error:
            raise ImageUnavailable(f"what its registry has is no SIF file: {error}", final=True) from error
        await self._build(file, fresh)
        await asyncio.to_thread(fetching.storage.make_room, self.limit_bytes)

    async def _build(self, source: ImageSource, fresh: Path) -> None:
        uri = await asyncio.to_thread(self._readable, source, fresh)
        if uri.startswith("/"):  # a SIF file, and no archive
            await weigh(
                Path(uri), Bounds(self.limit_bytes, MOST_ENTRIES), find_unsquashfs(self._command[-1]), self._user
            )
        await call(["build", str(fresh / "image"), uri], self._command, _places(fresh))
        size = await asyncio.to_thread(bytes_of, fresh / "image")
        if size > self.limit_bytes:
            raise ImageUnavailable(
                f"it unpacks to {size} bytes, more than the {self.limit_bytes} of PRORL_IMAGES_BYTES", final=True
            )

    async def _layers(self, fetching: Fetching, fetched: Fetched) -> list[Image]:
        """Each layer unpacked, from the lowest up, and held so that none is removed meanwhile."""
        left = self.limit_bytes
        held: list[Image] = []
        try:
            for layer in fetched.manifest.layers:
                held.append(await self._layer(fetching, layer, left))
                left = max(0, left - _noted_bytes(held[-1].path.parent))  # a next layer that has more is refused
        except BaseException:
            for image in held:
                image.close()
            raise
        return held

    async def _layer(self, fetching: Fetching, layer: Descriptor, most_bytes: int) -> Image:
        async def make(entry: Path, fresh: Path) -> None:
            blob = fetching.storage.path(layer.digest)
            await unpack(blob, layer.compression, most_bytes, fresh, self._user)
            (fresh / "whiteouts").rename(entry / "whiteouts")

        return await self._held(f"{LAYER}{layer.digest.removeprefix('sha256:')}", make, layer.digest)

    def _readable(self, source: ImageSource, fresh: Path) -> str:
        """The source, or a copy of it where the user that runs Apptainer cannot read the file."""
        file = source.file
        if file is None or os.geteuid() == self._user[0] or (file.stat().st_mode & 0o004 and is_open(file.parent)):
            return source.uri
        copy = fresh / "source"
        shutil.copyfile(file, copy)
        copy.chmod(0o644)
        return source.uri.replace(str(file), str(copy))

    def _make_room(self, keep: Collection[str]) -> bool:
        for leftover in self.directory.glob(f"{entries.REMOVED}*"):
            remove_tree(leftover)
        found = entries.look(self.directory)
        total = sum(each.bytes for each in found)
        images = [each for each in found if not each.path.name.startswith(LAYER)]
        gone: set[Path] = set()
        for each in images:
            wanted = each.path.name in keep and each.made
            if not wanted and (not each.made or total > self.limit_bytes) and remove_unused(each.path):
                gone.add(each.path)
                total -= each.bytes + self._drop_layers(found, images, gone)
        if total > self.limit_bytes or any(not each.made for each in found):
            total -= self._drop_layers(found, images, gone)
        if total > self.limit_bytes:
            log.warning("%s holds %d bytes, over its limit of %d: all of it is in use or named by a job",
                        self.directory, total, self.limit_bytes)  # fmt: skip
        return total <= self.limit_bytes or not any(each.made and each.path.name in keep for each in images)

    def _drop_layers(self, found: Sequence[CacheEntry], images: Sequence[CacheEntry], gone: set[Path]) -> int:
        """Removes layers that no image shares; so many bytes."""
        shared = {layer for each in images if each.path not in gone for layer in each.layers}
        freed = 0
        for each in found:
            name = each.path.name
            if name.startswith(LAYER) and name not in shared and each.path not in gone and remove_unused(each.path):
                gone.add(each.path)
                freed += each.bytes
        return freed


def find_unsquashfs(apptainer: str) -> str:
    """The one that this Apptainer brings with it, else the system's. Raises `SandboxUnavailable`."""
    top = Path(apptainer).resolve().parents[1]
    own = next((each for pattern in UNSQUASHFS for each in top.glob(pattern)), None)
    found = str(own) if own else shutil.which("unsquashfs")
    if found is None:
        raise SandboxUnavailable("SIF files need unsquashfs (Debian's package squashfs-tools): install it")
    return found


def _places(fresh: Path) -> dict[str, str]:
    """Variables that place Apptainer's own files where they are removed with the rest."""
    names = {"TMPDIR": "", "APPTAINER_TMPDIR": "", "APPTAINER_CONFIGDIR": "config", "APPTAINER_CACHEDIR": "cache"}
    return {name: str(fresh / place) for name, place in names.items()}


def _noted_bytes(entry: Path) -> int:
    try:
        return int((entry / "bytes").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
