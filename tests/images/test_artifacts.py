"""SIF files that a registry keeps as artifacts (`oras://`): fetched as layers are, unpacked by Apptainer."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.errors import ImageUnavailable, SandboxError
from sandbox.host import unprivileged
from sandbox.images import cache as caches
from sandbox.images.cache import ImageCache, find_unsquashfs
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

    async def unweighed(*_: object) -> None:
        """It would refuse the file as well."""

    monkeypatch.setattr(caches, "image_source", unchecked)
    monkeypatch.setattr(caches, "weigh", unweighed)
    monkeypatch.setattr(caches, "find_unsquashfs", str)
    with pytest.raises(SandboxError):
        await use(calling(cache("n2"), str(script)), name)
    assert calls.read_text() != ""


def bomb(apptainer: str, place: Path, files: int, size: int) -> bytes:
    """A SIF file of some kilobytes around files of zeros."""
    root = place / "bomb"
    (root / "bin").mkdir(parents=True)
    for number in range(files):
        with (root / f"zeros{number}").open("wb") as stream:
            stream.truncate(size)
    system, file = place / "bomb.sqsh", place / "bomb.sif"
    tools = Path(find_unsquashfs(apptainer)).parent
    subprocess.run([tools / "mksquashfs", root, system, "-quiet", "-no-progress"], check=True, capture_output=True)
    subprocess.run([apptainer, "sif", "new", file], check=True, capture_output=True)
    kinds = ["--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch", "2"]
    subprocess.run([apptainer, "sif", "add", *kinds, file, system], check=True, capture_output=True)
    return file.read_bytes()


BOMBS = {"bytes": (1, 40 << 30), "sum": (1_000, 4 << 20), "entries": (300, 0)}


@pytest.mark.parametrize("kind", BOMBS)
async def test_a_file_that_unpacks_to_more_than_the_limit_is_refused_before_anything_is_written(
    cache: Cache, registry: LoopbackRegistry, apptainer: str, place: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bomb(apptainer, place, *BOMBS[kind])
    assert len(data) < 1 << 20
    calls: list[str] = []

    async def call(words: list[str], *_: object) -> str:
        calls.append(words[0])
        raise SandboxError("begun")

    monkeypatch.setattr(caches, "call", call)
    if kind == "entries":
        monkeypatch.setattr(caches, "MOST_ENTRIES", 200)
    name = registry.push_artifact("team/bomb", data)
    with pytest.raises(ImageUnavailable, match=r"Hostile: it unpacks to more than \d+ bytes or \d+ entries") as failed:
        await use(calling(cache(), apptainer), name)
    assert not failed.value.retryable
    assert calls == []

    async def unweighed(*_: object) -> None:
        """The control."""

    monkeypatch.setattr(caches, "weigh", unweighed)
    with pytest.raises(SandboxError, match="begun"):
        await use(calling(cache("n2"), apptainer), name)
    assert calls == ["build"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [(lambda data: data[:100] + b"\xff" * 200 + data[300:], "it has "),
     (lambda data: data[:90] + b"\x7f" * 6 + data[96:], "more parts than any image has"),
     (lambda data: data[:36_864] + bytes(len(data) - 36_864), "cannot be listed")],
)  # fmt: skip
async def test_a_damaged_file_is_refused_unopened(
    cache: Cache, registry: LoopbackRegistry, apptainer: str, sif: bytes, damage: Callable[[bytes], bytes], why: str
) -> None:
    with pytest.raises(ImageUnavailable, match=why) as failed:
        await use(calling(cache(), apptainer), registry.push_artifact("team/bad", damage(sif)))
    assert not failed.value.retryable


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
