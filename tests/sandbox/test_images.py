"""Images on a node: fetched once, shared, removed when nobody uses them and space is needed."""

import asyncio
import functools
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from sandbox.errors import SandboxError
from sandbox.host import unprivileged
from sandbox.host.process import ended, opened, start_time
from sandbox.host.trees import remove_tree
from sandbox.images.cache import Image, ImageCache, find_unsquashfs
from sandbox.images.file_lock import try_lock
from sandbox.isolators.apptainer import ApptainerProvider, find_apptainer
from sandbox.protocol import SandboxSpec
from tests.sandbox.conftest import NODE, TOOLS_DIR, require_apptainer

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
Cache = Callable[..., ImageCache]
FETCH = """
import asyncio, sys
from pathlib import Path
from sandbox.host import unprivileged
from sandbox.images.cache import ImageCache

cache = ImageCache(Path(sys.argv[1]), sys.argv[3:], unprivileged.identity())
asyncio.run(cache.fetch(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def apptainer() -> str:
    require_apptainer()
    return find_apptainer(TOOLS_DIR)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user of the sandboxes can pass."""
    with tempfile.TemporaryDirectory(prefix="prorl-images-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def log(place: Path) -> Path:
    """Every command line of Apptainer."""
    path = place / "log"
    path.touch()
    path.chmod(0o666)
    return path


@pytest.fixture
def command(place: Path, log: Path, apptainer: str) -> list[str]:
    """Apptainer as the cache calls it, which writes down its words; while `hold` exists, builds wait to be killed."""
    script, tools = place / "bin" / "apptainer", place / "libexec" / "apptainer" / "bin"
    script.parent.mkdir()
    tools.mkdir(parents=True)
    (tools / "unsquashfs").symlink_to(find_unsquashfs(apptainer))
    hold = f'[ ! -e {place}/hold ] || {{ [ "$1" = --version ] || exec sleep 600; }}'
    script.write_text(f'#!/bin/sh\necho "$$ $*" >>{log}\n{hold}\nexec {apptainer} "$@"\n')
    script.chmod(0o755)
    return [*unprivileged.prefix(), str(script)]


@pytest.fixture
def cache(place: Path, command: list[str]) -> Cache:
    def make(limit_bytes: int = 1 << 30) -> ImageCache:
        return ImageCache(place / "cache", command, unprivileged.identity(), limit_bytes)

    return make


@pytest.fixture(scope="module")
def sif_of(apptainer: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """A small image that holds a text and a megabyte."""

    def make(text: str) -> bytes:
        root = tmp_path_factory.mktemp("root")
        (root / "closed").mkdir()
        (root / "closed" / "text").write_text(text)
        (root / "closed" / "bulk").write_bytes(os.urandom(1 << 20))
        target = tmp_path_factory.mktemp("sif") / "image.sif"
        environment = {**os.environ, "APPTAINER_CONFIGDIR": str(target.parent / "config")}
        environment["APPTAINER_CACHEDIR"] = str(target.parent / "cache")
        command = [apptainer, "--silent", "build", target, root]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        return target.read_bytes()

    return functools.cache(make)


@pytest.fixture
def sif(place: Path, sif_of: Callable[[str], bytes]) -> Callable[[str], str]:
    """Puts one into a file."""

    def put(name: str, text: str = "text") -> str:
        (place / name).write_bytes(sif_of(text))
        return str(place / name)

    return put


def builders(log: Path) -> list[int]:
    """The processes that have been told to build."""
    return [int(line.split()[0]) for line in log.read_text().splitlines() if " build " in line]


async def a_builder(log: Path) -> int:
    """Waits for one."""
    async with asyncio.timeout(30):
        while not builders(log):
            await asyncio.sleep(0.01)
    return builders(log)[-1]


def parts_of(image: Image) -> set[str]:
    """What the cache keeps of it."""
    return {path.name for path in image.path.parent.iterdir()}


def entries(place: Path) -> set[str]:
    return {path.name for path in (place / "cache").iterdir()}


def kept(place: Path) -> set[str]:
    return {path.read_text() for path in (place / "cache").glob("*/image/closed/text")}


async def use(cache: ImageCache, source: str) -> None:
    (await cache.fetch(source)).close()


async def test_a_file_becomes_a_directory_once(cache: Cache, sif: Callable[..., str], log: Path) -> None:
    source = sif("a.sif", "hello")
    first = await cache().fetch(source)
    second = await cache().fetch(f"file://{source}")
    assert first.path == second.path
    assert (first.path / "closed" / "text").read_text() == "hello"
    assert parts_of(first) == {"lock", "bytes", "image", "source"}
    assert len(builders(log)) == 1
    first.close()
    second.close()


async def test_a_file_with_a_new_content_is_another_image(cache: Cache, sif: Callable[..., str], place: Path) -> None:
    await use(cache(), sif("a.sif", "one"))
    await use(cache(), sif("a.sif", "two"))
    assert kept(place) == {"one", "two"}


async def test_a_file_that_only_root_can_reach_is_fetched_all_the_same(
    cache: Cache, sif: Callable[..., str], place: Path
) -> None:
    (place / "closed").mkdir(mode=0o700)
    image = await cache().fetch(sif("closed/a.sif", "hello"))
    assert (image.path / "closed" / "text").read_text() == "hello"
    image.close()


async def test_calls_at_once_share_one_fetch(cache: Cache, sif: Callable[..., str], log: Path) -> None:
    source = sif("a.sif")
    images = await asyncio.gather(*(cache().fetch(source) for _ in range(6)))
    assert len({image.path for image in images}) == 1
    assert len(builders(log)) == 1
    for image in images:
        image.close()


async def test_processes_at_once_share_one_fetch(
    command: list[str], sif: Callable[..., str], log: Path, place: Path
) -> None:
    words = [sys.executable, "-c", FETCH, str(place / "cache"), sif("a.sif"), *command]
    running = [await asyncio.create_subprocess_exec(*words, cwd=ROOT) for _ in range(4)]
    assert await asyncio.gather(*(process.wait() for process in running)) == [0] * 4
    assert len(builders(log)) == 1


async def test_the_least_recently_used_make_room(cache: Cache, sif: Callable[..., str], place: Path) -> None:
    small = cache(3 << 20)
    one, two, three = (sif(f"{name}.sif", name) for name in ("one", "two", "three"))
    await use(small, one)
    await use(small, two)
    await use(small, one)
    await use(small, three)
    assert kept(place) == {"one", "three"}
    assert len(entries(place)) == 2, entries(place)


async def test_an_image_in_use_is_never_removed(
    cache: Cache, sif: Callable[..., str], place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tight = cache(3 << 19)  # for one
    image = await tight.fetch(sif("one.sif", "one"))
    await use(tight, sif("two.sif", "two"))
    await use(tight, sif("three.sif", "three"))
    assert kept(place) == {"one", "three"}
    assert "in use" in caplog.text
    image.close()
    await use(tight, sif("four.sif", "four"))
    assert kept(place) == {"four"}


async def test_an_image_stays_in_use_for_as_long_as_a_sandbox_runs_it(place: Path, apptainer: str) -> None:
    """Whoever made the sandbox has given its own hold back; what the sandbox runs cannot take the lock away."""
    provider = ApptainerProvider(NODE, place / "state", None, TOOLS_DIR)
    sandbox = await provider.create(SandboxSpec(owner="job:1", image=str(TOOLS_DIR / "images" / "base.sif")))
    [lock] = (place / "state" / "image-cache").glob("*/lock")
    with lock.open() as stream:
        assert (await sandbox.run(["cat", "/etc/os-release"])).exit_code == 0
        names = (await sandbox.run(["sh", "-c", "readlink /proc/self/fd/*"])).stdout.decode()
        assert "lock" not in names
        assert not try_lock(stream.fileno(), exclusive=True)
        await sandbox.close()
        await provider.aclose()
        assert try_lock(stream.fileno(), exclusive=True)


async def test_a_cancelled_fetch_ends_its_processes_and_the_next_one_starts_anew(
    cache: Cache, sif: Callable[..., str], place: Path, log: Path
) -> None:
    source = sif("a.sif")
    (place / "hold").touch()
    first = asyncio.create_task(cache().fetch(source))
    pid = await a_builder(log)
    second = asyncio.create_task(cache().fetch(source))
    with opened(pid, start_time(pid) or "") as builder:
        assert builder is not None
        (place / "hold").unlink()
        first.cancel()
        image = await second
        assert await ended(builder, 10)
    assert first.cancelled()
    assert parts_of(image) == {"lock", "bytes", "image", "source"}
    image.close()


async def test_what_a_killed_process_left_half_made_is_replaced(
    command: list[str], cache: Cache, sif: Callable[..., str], place: Path, log: Path
) -> None:
    source = sif("a.sif")
    (place / "hold").touch()
    words = [sys.executable, "-c", FETCH, str(place / "cache"), source, *command]
    maker = await asyncio.create_subprocess_exec(*words, cwd=ROOT)
    builder = await a_builder(log)
    maker.kill()
    await maker.wait()
    os.kill(builder, signal.SIGKILL)
    (place / "hold").unlink()
    image = await cache().fetch(source)
    assert parts_of(image) == {"lock", "bytes", "image", "source"}
    image.close()


def test_what_its_owner_may_not_write_to_is_removed_and_what_links_name_is_not(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir(mode=0o750)
    (tmp_path / "image" / "deep").mkdir(parents=True)
    (tmp_path / "image" / "deep" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "image" / "deep" / "file").touch()
    for path in (tmp_path / "image" / "deep", tmp_path / "image"):
        path.chmod(0o555)
    remove_tree(tmp_path / "image")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o750


async def test_a_damaged_file_is_named_and_leaves_nothing(cache: Cache, sif: Callable[..., str], place: Path) -> None:
    broken = sif("a.sif")
    os.truncate(broken, 40_000)
    with pytest.raises(SandboxError, match=r"a\.sif cannot be had: it cannot be unpacked: .* cannot be listed"):
        await cache().fetch(broken)
    assert [path.name for path in (place / "cache").glob("*/*")] == ["lock"]


async def test_a_recipe_is_refused_and_not_run(cache: Cache, place: Path, log: Path) -> None:
    """Its %setup would run on this host."""
    recipe = place / "recipe"
    recipe.write_text(f"Bootstrap: localimage\nFrom: /\n%setup\n    touch {place}/ran\n")
    with pytest.raises(SandboxError, match="no SIF file"):
        await cache().fetch(str(recipe))
    assert not (place / "ran").exists()
    assert builders(log) == []


@pytest.mark.parametrize("source", ["/no/such.sif", "no-such-word", "docker-archive:/no/such.tar", "ftp://host/x"])
async def test_a_source_that_cannot_be_read_is_told_from_those_that_can(cache: Cache, source: str) -> None:
    with pytest.raises(SandboxError, match=r"cannot be read.*known sources are .*docker://"):
        await cache().fetch(source)


@pytest.fixture
def archive(place: Path) -> str:
    """An image as `docker save` writes it; one of its files belongs to a user that this machine does not map."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("closed/text")
        entry.size, entry.uid, entry.mode = 4, 12345, 0o644
        tar.addfile(entry, io.BytesIO(b"oci\n"))
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{sha256(layer.getvalue()).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"]}, "rootfs": rootfs}
    manifest = [{"Config": "config.json", "RepoTags": ["x:latest"], "Layers": ["layer.tar"]}]
    parts = {
        "manifest.json": json.dumps(manifest).encode(),
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer.getvalue(),
    }
    with tarfile.open(place / "image.tar", "w") as tar:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return f"docker-archive:{place}/image.tar"


async def test_an_image_of_docker_is_converted(cache: Cache, archive: str) -> None:
    image = await cache().fetch(archive)
    assert (image.path / "closed" / "text").read_text() == "oci\n"
    image.close()
