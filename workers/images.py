"""`python -m workers.images`: lists, fetches and removes images of this node; `prorl-mq images` starts it.

Names come as arguments, rows of tasks as JSON lines on standard input.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import logs
from prorl_mq.process.screen.tables import json_text, table
from prorl_mq.settings import Setting, add
from prorl_mq.store.images import records as images
from prorl_mq.store.images.records import ImageRecord
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect, located
from prorl_mq.store.store import Store
from sandbox.errors import SandboxError
from sandbox.images import entry as entries
from sandbox.images.cache import LAYER
from sandbox.images.entry import CacheEntry
from sandbox.images.source import image_source
from workers.node.images.place import NodeImages, node_images
from workers.node.images.waiting import size, told
from workers.redis_options import REDIS_SETTINGS, redis_settings
from workers.settings import NODE, STATE_DIR, default_node
from workers.stages.registry import Registry, load

SETTINGS: Final = (
    Setting("action", "what to do; rows: ls as JSON", choices=("ls", "rows", "pull", "rm")),
    Setting("names", "names of images", nargs="*"),
    *REDIS_SETTINGS,
    NODE,
    STATE_DIR,
)
SHOWN_S: Final = 2.0  # between two lines of progress


class ImageRow(msgspec.Struct, frozen=True):
    """The part of a task that says its image."""

    data_source: str
    payload: dict[str, object]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 an image cannot be had or removed, 2 wrong names or settings."""
    parser = argparse.ArgumentParser(prog="prorl-mq images", description="Images of this node.")
    add(parser, SETTINGS, os.environ)
    given = parser.parse_args(argv)
    logs.configure(os.environ)
    try:
        return asyncio.run(run(given, [] if sys.stdin.isatty() else sys.stdin.buffer.readlines()))
    except (ProrlError, SandboxError) as error:
        print(f"prorl-mq images: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


async def run(given: argparse.Namespace, rows: Sequence[bytes]) -> int:
    names = list(dict.fromkeys([*given.names, *(names_of(rows, load()) if rows else ())]))
    settings, node = redis_settings(given, os.environ), given.node or default_node()
    await located(settings)
    redis = connect(settings)
    store = Store(redis, Keys(settings.namespace), name=f"images-{node}-{os.getpid()}", outage_ms=settings.outage_ms)
    found = node_images(store, node, given.state_dir)
    try:
        match given.action:
            case "pull":
                return await pull(store, found, node, names)
            case "rm":
                return await remove(store, found, node, names)
            case _:
                listed = await look(store, found)
                print(json_text(listed) if given.action == "rows" else listing(listed))
                return 0
    finally:
        await found.fetches.aclose()
        await redis.aclose()


def names_of(rows: Iterable[bytes], registry: Registry) -> list[str]:
    """The images that rows need, as their families say. Raises `ConfigurationError`."""
    found: dict[str, None] = {}
    for line in rows:
        row = msgspec.json.decode(line, type=ImageRow)
        handler = registry.by_source.get(row.data_source)
        says = getattr(handler, "images", None)
        if says is None:
            what = "is not installed" if handler is None else "does not say which images its rows need"
            raise ConfigurationError(f"the task family of {row.data_source!r} {what}: name the images themselves")
        try:
            found |= dict.fromkeys(says(row.payload))
        except Exception as error:  # a family's own code
            raise ConfigurationError(f"a row of {row.data_source!r} names no image: {error}") from error
    return list(found)


async def pull(store: Store, found: NodeImages, node: str, names: Sequence[str]) -> int:
    """Fetches images, several at a time; what has arrived when this ends counts the next time."""
    if not names:
        raise ConfigurationError("nothing is to be fetched: name images, or files of rows that need a registry's")
    sources = {name: await asyncio.to_thread(image_source, name) for name in names}
    running = [asyncio.create_task(found.fetches.fetch(name, each.key)) for name, each in sources.items()]
    watching = asyncio.create_task(_watch(store, [each.key for each in sources.values()], node))
    ended = []
    try:
        for task in asyncio.as_completed(running):
            record = await task
            ended.append(record)
            print(_ended(record, len(ended), len(names)), flush=True)
    finally:
        watching.cancel()
        for task in running:
            task.cancel()
        await asyncio.gather(watching, *running, return_exceptions=True)
    return int(any(record.state == "failed" for record in ended))


async def remove(store: Store, found: NodeImages, node: str, names: Sequence[str]) -> int:
    """Removes images and forgets what their tags meant, unless a sandbox runs them or a job names them."""
    kept, failed = await images.pinned(store), False
    for name in names:
        source = await asyncio.to_thread(image_source, name)
        entry = found.cache.directory / source.key
        there = entry.is_dir()
        if not there and await asyncio.to_thread(found.storage.resolved, source.key) is None:
            why = "is not on this node"
        elif source.key in kept:
            why = "is kept: a job that is not over names it"
        elif there and not await asyncio.to_thread(entries.remove_unused, entry):
            why = "is kept: a sandbox runs it, or it is being fetched"
        else:
            await asyncio.to_thread(found.storage.forget, source.key)
            await images.drop(store, [source.key], node)
            print(f"{name}: {'removed' if there else 'is not on this node; what its tag meant is forgotten'}")
            continue
        failed = True
        print(f"{name}: {why}", file=sys.stderr)
    await found.cache.make_room()
    await found.cache.drop_layers()
    return int(failed)


class ImageLine(msgspec.Struct, frozen=True, kw_only=True):
    """An image: its bytes on this node, None where it is not here; nodes that have it; what keeps or fails it."""

    image: str
    bytes: int | None
    nodes: list[str]
    state: list[str]


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Images, and what they and their layers take on this node."""

    images: list[ImageLine]
    entries: int
    bytes: int
    limit_bytes: int


async def look(store: Store, found: NodeImages) -> Listing:
    """Those of this node, and what other nodes have noted of theirs."""
    here = {each.path.name: each for each in entries.look(found.cache.directory) if each.made}
    records: dict[str, list[ImageRecord]] = {}
    for record in await images.all_of(store):
        records.setdefault(record.key, []).append(record)
    kept = await images.pinned(store)
    keys = sorted({*(key for key in here if not key.startswith(LAYER)), *records})
    return Listing(
        images=[_line(key, here.get(key), records.get(key, []), named=key in kept) for key in keys],
        entries=sum(key.startswith(LAYER) for key in here),
        bytes=sum(each.bytes for each in here.values()),
        limit_bytes=found.cache.limit_bytes,
    )


def listing(found: Listing) -> str:
    """A table of it."""
    rows = [
        (each.image, "-" if each.bytes is None else size(each.bytes), ", ".join(each.nodes) or "-",
         "; ".join(each.state) or "-")
        for each in found.images
    ]  # fmt: skip
    total, limit = size(found.bytes), size(found.limit_bytes)
    head = f"{found.entries} layers and images have {total} of {limit} on this node"
    return "\n".join([table(("image", "here", "nodes", "state"), rows) if rows else "no images", head])


def _line(key: str, here: CacheEntry | None, records: Sequence[ImageRecord], *, named: bool) -> ImageLine:
    name = here.source if here is not None and here.source else next((each.name for each in records), key)
    states = [_state(each) for each in records if each.state != "ready"]
    if here is not None and entries.in_use(here.path):
        states.append("in use")
    if named:
        states.append("named by a job")
    ready = sorted(each.node for each in records if each.state == "ready")
    return ImageLine(image=name, bytes=None if here is None else here.bytes, nodes=ready, state=states)


def _state(record: ImageRecord) -> str:
    if record.state == "failed":
        return f"failed on {record.node}: {record.why}"
    return told("", record.node, record).removeprefix("image : ")


def _ended(record: ImageRecord, number: int, count: int) -> str:
    what = f"{size(record.total)} ready" if record.state == "ready" and record.total else record.state
    return f"[{number}/{count}] {record.name}: {what}" + (f": {record.why}" if record.why else "")


async def _watch(store: Store, keys: Sequence[str], node: str) -> None:
    while True:
        await asyncio.sleep(SHOWN_S)
        with contextlib.suppress(ProrlError):
            for key in keys:
                for record in await images.look(store, key, [node]):
                    if record.state in {"fetching", "unpacking"}:
                        print(told(record.name, node, record), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
