"""`python -m workers.images`: what it lists, what it removes, and which images it takes from rows."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.screen.tables import json_text
from prorl_mq.store.images import records
from prorl_mq.store.images.records import ImageRecord
from sandbox.images.cache import LAYER, ImageCache
from sandbox.images.entry import remove_unused
from sandbox.images.layers.storage import BlobStorage
from sandbox.images.source import image_source
from tests.integration.test_families import Installed
from tests.support.queue import Queue
from tests.support.registry import LoopbackRegistry, archive, file
from tests.worker.conftest import queue
from workers import images as command
from workers.node.images import place as node_place
from workers.node.images.fetches import Fetches
from workers.node.images.place import NodeImages
from workers.stages.registry import Registry

__all__ = ["queue"]
pytestmark = pytest.mark.anyio


class Imaged(Installed):
    """A family that says its images."""

    def images(self, payload: dict[str, Any]) -> list[str]:
        return [payload["image"]]


@pytest.fixture
def found(cache: Callable[..., ImageCache], queue: Queue, place: Path) -> NodeImages:
    made, storage = cache(), BlobStorage(place / "blobs")
    return NodeImages(made, storage, Fetches(queue.store, made, storage, "n1"))


async def test_an_image_is_pulled_listed_and_removed_with_its_layers(
    found: NodeImages, queue: Queue, registry: LoopbackRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [registry.push(each, [archive([file(each, os.urandom(1 << 20))])]) for each in ("one", "two")]
    assert await command.pull(queue.store, found, "n1", names) == 0
    assert f"{names[0]}: 1.0 MB ready" in capsys.readouterr().out
    held = await found.cache.fetch(names[1])
    shown = command.listing(await command.look(queue.store, found))
    assert names[0] in shown
    assert "in use" in next(line for line in shown.splitlines() if names[1] in line)
    assert await command.remove(queue.store, found, "n1", names) == 1
    told = capsys.readouterr()
    assert f"{names[0]}: removed" in told.out
    assert f"{names[1]}: is kept: a sandbox runs it" in told.err
    assert len(list(found.cache.directory.glob(f"{LAYER}*"))) == 1, "what the removed one alone had is gone"
    held.close()
    assert await command.remove(queue.store, found, "n1", names) == 1
    told = capsys.readouterr()
    assert (f"{names[0]}: is not on this node" in told.err, f"{names[1]}: removed" in told.out) == (True, True)
    assert "no images" in command.listing(await command.look(queue.store, found))


async def test_a_tag_that_has_moved_is_fetched_again_after_rm_also_where_its_image_is_gone(
    found: NodeImages, queue: Queue, registry: LoopbackRegistry
) -> None:
    name = registry.push("x", [archive([file("old", b"old")])])
    image = await found.cache.fetch(name)
    image.close()
    assert remove_unused(image.path.parent)  # evicted
    registry.push("x", [archive([file("new", b"new")])])
    assert await command.remove(queue.store, found, "n1", [name]) == 0
    image = await found.cache.fetch(name)
    image.close()
    assert (image.path / "new").is_file()


async def test_an_image_that_a_job_names_is_listed_so_and_not_removed(
    found: NodeImages, queue: Queue, registry: LoopbackRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    name = registry.push("x", [archive([file("a", b"a")])])
    await command.pull(queue.store, found, "n1", [name])
    [ref] = await queue.admitted()
    await records.pin(queue.store, ref, image_source(name).key)
    assert "named by a job" in command.listing(await command.look(queue.store, found))
    assert await command.remove(queue.store, found, "n1", [name]) == 1
    assert "is kept: a job that is not over names it" in capsys.readouterr().err


async def test_a_pull_that_fails_says_why_and_so_does_the_list(
    found: NodeImages, queue: Queue, registry: LoopbackRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"docker://{registry.host}/no/such"
    assert await command.pull(queue.store, found, "n1", [name]) == 1
    assert "answers 404: there is no such image" in capsys.readouterr().out
    assert "failed on n1" in command.listing(await command.look(queue.store, found))


async def test_records_of_fetches_that_were_killed_are_forgotten(found: NodeImages, queue: Queue) -> None:
    ms = await queue.store.now_ms()
    for node in ("n1", "n2"):
        record = ImageRecord(key="k", name="docker://h.example/x", node=node, state="fetching", ms=ms - 61_000)
        await records.note(queue.store, record)
    await node_place.sweep(queue.store, found.cache, "n1")
    assert [each.node for each in await records.all_of(queue.store)] == ["n2"]


def test_rows_name_images_by_their_family() -> None:
    families = Registry([Imaged("imaged"), Installed("silent")])
    row = {"data_source": "imaged", "payload": {"image": "docker://h.example/x"}}
    assert command.names_of([json.dumps(row).encode()] * 2, families) == ["docker://h.example/x"]
    for source, why in (("silent", "does not say which images"), ("none", "is not installed")):
        with pytest.raises(ConfigurationError, match=why):
            command.names_of([json.dumps({**row, "data_source": source}).encode()], families)
    with pytest.raises(ConfigurationError, match="names no image"):
        command.names_of([json.dumps({**row, "payload": {}}).encode()], families)


async def test_the_list_is_for_programs_too(found: NodeImages, queue: Queue, registry: LoopbackRegistry) -> None:
    name = registry.push("x", [archive([file("a", b"a")])])
    await command.pull(queue.store, found, "n1", [name])
    listed = json.loads(json_text(await command.look(queue.store, found)))
    [line] = listed["images"]
    assert (line["image"], line["nodes"], line["state"]) == (name, ["n1"], [])
    assert line["bytes"] <= listed["bytes"] <= listed["limit_bytes"]
