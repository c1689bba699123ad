"""The images of a node, wired: cache, storage, leases and fetches."""

import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

from prorl_mq.store.images import records as images
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store
from sandbox.errors import SandboxUnavailable
from sandbox.host import unprivileged
from sandbox.host.reachable import reachable_place
from sandbox.images import entry
from sandbox.images.cache import LAYER, ImageCache
from sandbox.images.layers.fetching import Fetching
from sandbox.images.layers.storage import BlobStorage
from sandbox.images.registry.logins import logins_from
from sandbox.images.settings import image_settings, limit_bytes
from sandbox.isolators.apptainer import find_apptainer
from workers import metrics
from workers.node.images.fetches import Fetches
from workers.node.images.leases import BlobLeases
from workers.node.sandboxes import tools

SWEEP_LEASE_MS: Final = 50_000
SWEEP_S: Final = 60.0
STALE_MS: Final = 60_000
log = logging.getLogger("workers.node.images")


class NodeImages(NamedTuple):
    """Of one process."""

    cache: ImageCache
    storage: BlobStorage
    fetches: Fetches


def node_images(store: Store, node: str, state_dir: Path) -> NodeImages:
    """Raises `SandboxUnavailable` for settings that cannot be used."""
    settings = image_settings(os.environ)
    limit, own = limit_bytes(os.environ), state_dir.absolute()
    storage = BlobStorage(Path(settings.storage).expanduser() if settings.storage else own / "image-blobs")
    logins = logins_from(Path(settings.login).expanduser() if settings.login else None)
    fetching = Fetching(
        storage, logins, settings.mirrors, BlobLeases(store), most_bytes=limit, count=metrics.image_fetched_bytes.inc
    )

    async def keep() -> set[str]:
        return await images.pinned(store)

    directory = own / "image-cache"
    if unprivileged.prefix():
        directory = reachable_place(directory)
    cache = ImageCache(directory, _apptainer(state_dir), unprivileged.identity(), limit, fetching, keep)
    return NodeImages(cache, storage, Fetches(store, cache, storage, node))


async def sweep(store: Store, cache: ImageCache, node: str) -> None:
    """Forgets the jobs that are over, and this node's records of images that it has no longer."""
    await images.pinned(store)
    there = {each.path.name for each in entry.look(cache.directory) if not each.path.name.startswith(LAYER)}
    records = [each for each in await images.all_of(store) if each.node == node]
    now_ms = await store.now_ms()
    gone = {
        each.key for each in records
        if (each.state == "ready" and each.key not in there)
        or (each.state in {"fetching", "unpacking"} and now_ms - each.ms > STALE_MS)  # its process was killed
    }  # fmt: skip
    await images.drop(store, gone, node)


async def sweep_once(store: Store, cache: ImageCache, node: str) -> None:
    """One process of a node does it at a time."""
    if await store.hold(f"image:sweep:{node}", lease_ms=SWEEP_LEASE_MS) == "held":
        try:
            await sweep(store, cache, node)
        except FAULTS as error:
            log.warning("images: %s", error)


def _apptainer(state_dir: Path) -> list[str]:
    """Its command line; empty where it is missing: then images of registries alone can be had."""
    try:
        return [*unprivileged.prefix(), find_apptainer(tools(state_dir).absolute())]
    except SandboxUnavailable:
        return []
