"""SIF files that a registry keeps as artifacts (`oras://`): fetched as layers are, unpacked by Apptainer."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.errors import ImageUnavailable, SandboxError
from sandbox.host import unprivileged
from sandbox.images import cache as caches
from sandbox.images.cache import ImageCache
from sandbox.images.source import ImageSource, image_source
from sandbox.isolators.apptainer import find_apptainer
from tests.images.test_pulling import BASE, use
from tests.sandbox.conftest import TOOLS_DIR, image_without_python, require_apptainer
from tests.support.registry import GZIP, LoopbackRegistry, digest_of

__all__ = ["image_without_python"]
pytestmark = pytest.mark.anyio
Cache = Callable[..., ImageCache]
RECIPE = b"Bootstrap: scratch\n%setup\n  touch /var/tmp/escaped\n"


@pytest.fixture
def apptainer() -> str:
    require_apptainer()
    return find_apptainer(TOOLS_DIR)


@pytest.fixture
def sif(apptainer: str, place: Path, image_without_python: Path) -> bytes:
    file = place / "one.sif"
    subprocess.run([apptainer, "build", file, image_without_python], check=True, capture_output=True)
    return file.read_bytes()


def calling(made: ImageCache, program: str) -> ImageCache:
    made._command = [*unprivileged.prefix(), program]
    return made


async def test_a_sif_file_is_fetched_once_for_all_nodes_and_continued_at_its_byte(
    cache: Cache, registry: LoopbackRegistry, apptainer: str, sif: bytes
) -> None:
    def node(name: str = "n1") -> ImageCache:
        return calling(cache(name), apptainer)

    registry.cut_after = len(sif) // 2
    name, digest = registry.push_artifact("team/one", sif), digest_of(sif)
    with pytest.raises(ImageUnavailable):
        await use(node(), name)
    image = await use(node(), name)
    assert (image / "bin").exists()
    (asked,) = registry.ranges
    assert asked != "bytes=0-"
    sent = registry.sent[digest]
    assert (await use(node("n2"), name)) != image
    assert registry.sent[digest] == sent


async def test_what_is_no_sif_file_never_reaches_apptainer(
    cache: Cache, registry: LoopbackRegistry, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, script, calls = registry.push_artifact("team/recipe", RECIPE), place / "apptainer", place / "calls"
    calls.touch()
    calls.chmod(0o666)
    script.write_text(f'#!/bin/sh\necho "$*" >>{calls}\nexit 1\n')
    script.chmod(0o755)
    with pytest.raises(ImageUnavailable, match="is no SIF file") as failed:
        await use(calling(cache(), str(script)), name)
    assert not failed.value.retryable
    assert calls.read_text() == ""

    def unchecked(text: str) -> ImageSource:
        """The control: without the look at the file it is Apptainer that reads it."""
        return image_source(text) if "://" in text else ImageSource(uri=text, key="x", file=Path(text))

    monkeypatch.setattr(caches, "image_source", unchecked)
    with pytest.raises(SandboxError):
        await use(calling(cache("n2"), str(script)), name)
    assert calls.read_text() != ""


async def test_a_file_of_another_digest_is_refused_and_not_kept(
    cache: Cache, registry: LoopbackRegistry, place: Path
) -> None:
    registry.swap = lambda data: data and data[:-1] + b"?"  # not the empty configuration
    name = registry.push_artifact("team/one", b"x" * 1000)
    with pytest.raises(ImageUnavailable, match="has another digest"):
        await use(cache(), name)
    assert (place / "blobs/names").exists()
    assert not (place / "blobs/sha256" / digest_of(b"x" * 1000)[7:]).exists()


async def test_a_file_above_the_limit_is_refused_before_it_is_fetched(cache: Cache, registry: LoopbackRegistry) -> None:
    name = registry.push_artifact("team/one", b"x" * 5000)
    with pytest.raises(ImageUnavailable, match="has 5000 bytes, over the 4096"):
        await use(cache(limit_bytes=4096), name)
    assert not registry.sent


@pytest.mark.parametrize("scheme", ["oras", "docker"])
async def test_each_kind_is_refused_under_the_name_of_the_other(
    cache: Cache, registry: LoopbackRegistry, scheme: str
) -> None:
    name = registry.push("team/x", [BASE]) if scheme == "oras" else registry.push_artifact("team/x", b"SIF")
    with pytest.raises(ImageUnavailable, match="name a SIF file by oras://, and a container image by docker://"):
        await use(cache(), f"{scheme}://{name.partition('://')[2]}")


async def test_an_artifact_of_another_kind_is_refused(cache: Cache, registry: LoopbackRegistry) -> None:
    with pytest.raises(ImageUnavailable, match="is no single SIF file"):
        await use(cache(), registry.push_artifact("team/x", b"tar", media=GZIP))
