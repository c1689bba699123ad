"""Images of registries become directories: whole, checked, continued where they were cut off."""

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.errors import ImageUnavailable
from sandbox.images.cache import LAYER, ImageCache
from sandbox.images.environment import environment_of
from sandbox.images.layers import fetching
from sandbox.images.registry.logins import Logins
from tests.support.registry import GZIP, PLAIN, ZSTD, LoopbackRegistry, archive, file, other
from workers.handlers.swe.images import MAPPING, image_of
from workers.handlers.swe.rows import SweTask

pytestmark = pytest.mark.anyio
Cache = Callable[..., ImageCache]
BASE = archive(
    [
        other("etc", tarfile.DIRTYPE),
        file("etc/keep", b"keep"),
        file("etc/gone", b"gone"),
        file("old/inner/a", b"a"),
        file("swapped/below", b"x"),
        other("link", tarfile.SYMTYPE, "etc"),
        other("hard", tarfile.LNKTYPE, "etc/keep"),
    ]
)
TOP = archive(
    [
        file("etc/.wh.gone"),
        file("old/.wh..wh..opq"),
        file("old/new", b"new", 0o4755),
        file("swapped", b"now a file"),
        file("link/inside", b"over a link"),
    ]
)
BULK = archive([file("bulk", os.urandom(3 << 20))])


def tree(root: Path) -> dict[str, str]:
    """Files with their content, links with where they lead; directories that isolators mount over left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text() if path.stat().st_size < 100 else "bulk"
    return found


async def use(cache: ImageCache, name: str) -> Path:
    image = await cache.fetch(name)
    image.close()
    return image.path


@pytest.mark.parametrize(("media", "index"), [(GZIP, True), (ZSTD, False), (PLAIN, False)])
async def test_layers_lie_over_each_other_as_their_whiteouts_say(
    cache: Cache, registry: LoopbackRegistry, media: str, index: bool
) -> None:
    path = await use(cache(), registry.push("team/x", [BASE, TOP], media=media, index=index))
    assert tree(path) == {
        "etc/keep": "keep", "hard": "keep", "old/new": "new", "swapped": "now a file", "link/inside": "over a link",
    }  # fmt: skip
    assert stat.S_IMODE((path / "old/new").stat().st_mode) == 0o755


async def test_a_layer_is_fetched_and_unpacked_once_for_all_images(cache: Cache, registry: LoopbackRegistry) -> None:
    one, two = registry.push("one", [BULK, BASE]), registry.push("two", [BULK, TOP])
    first, second = await use(cache(), one), await use(cache(), two)
    assert [count for digest, count in registry.asked.items() if digest in registry.blobs] == [1] * 4
    assert (first / "bulk").stat().st_ino == (second / "bulk").stat().st_ino
    assert len(list(first.parents[1].glob(f"{LAYER}*"))) == 3


async def test_nodes_that_share_a_storage_fetch_once_and_run_what_the_name_meant_first(
    cache: Cache, registry: LoopbackRegistry
) -> None:
    name = registry.push("team/x", [BASE])
    await use(cache("n1"), name)
    before = sum(registry.sent.values())
    registry.push("team/x", [TOP])  # the tag has moved
    assert tree(await use(cache("n2"), name))["etc/gone"] == "gone"
    assert sum(registry.sent.values()) == before


async def test_a_fetch_that_was_cut_off_goes_on_at_its_byte(cache: Cache, registry: LoopbackRegistry) -> None:
    name = registry.push("big", [BULK], media=PLAIN)
    registry.cut_after = 2_000_000
    with pytest.raises(ImageUnavailable, match="big:latest cannot be had") as failed:
        await use(cache(), name)
    assert failed.value.retryable
    await use(cache(), name)
    [layer] = [digest for digest, data in registry.blobs.items() if data == BULK]
    assert len(registry.ranges) == 1
    assert registry.sent[layer] - len(BULK) < 600_000, "what a socket may hold when it is cut"


async def test_a_registry_without_ranges_sends_all_again(cache: Cache, registry: LoopbackRegistry) -> None:
    name = registry.push("big", [BULK], media=PLAIN)
    registry.cut_after = 2_000_000
    registry.no_ranges = True
    with pytest.raises(ImageUnavailable):
        await use(cache(), name)
    assert tree(await use(cache(), name)) == {"bulk": "bulk"}


async def test_a_damaged_part_is_fetched_once_more_from_its_beginning(
    cache: Cache, registry: LoopbackRegistry, place: Path
) -> None:
    name = registry.push("big", [BULK], media=PLAIN)
    [layer] = [digest for digest, data in registry.blobs.items() if data == BULK]
    (place / "blobs" / "sha256").mkdir(parents=True)
    (place / "blobs" / "sha256" / f"{layer.removeprefix('sha256:')}.part").write_bytes(bytes(1 << 20))
    assert tree(await use(cache(), name)) == {"bulk": "bulk"}
    assert registry.asked[layer] == 2


async def test_a_blob_of_another_digest_is_refused_and_not_kept(
    cache: Cache, registry: LoopbackRegistry, place: Path
) -> None:
    name = registry.push("team/x", [BASE])
    registry.swap = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ImageUnavailable, match="another digest") as failed:
        await use(cache(), name)
    assert not failed.value.retryable
    whole = {path.name for path in (place / "blobs" / "sha256").iterdir() if path.suffix != ".part"}
    assert not {f"sha256:{name}" for name in whole} & registry.blobs.keys()


@pytest.mark.parametrize("status", [404, 403])
async def test_what_a_registry_has_not_is_final(cache: Cache, registry: LoopbackRegistry, status: int) -> None:
    registry.statuses = [status] * 2
    with pytest.raises(ImageUnavailable, match=rf"team/x:latest cannot be had: .* answers {status}") as failed:
        await use(cache(), registry.push("team/x", [BASE]))
    assert not failed.value.retryable


async def test_a_registry_that_is_busy_is_not(cache: Cache, registry: LoopbackRegistry) -> None:
    name = registry.push("team/x", [BASE])
    registry.statuses = [503]
    with pytest.raises(ImageUnavailable, match="answers 503") as failed:
        await use(cache(), name)
    assert failed.value.retryable
    await use(cache(), name)


@pytest.mark.parametrize("token", [None, "secret-token"])
async def test_a_login_opens_a_registry(cache: Cache, registry: LoopbackRegistry, token: str | None) -> None:
    registry.login, registry.token = "user:password", token
    name = registry.push("team/x", [BASE])
    with pytest.raises(ImageUnavailable, match="answers 401: no login") as failed:
        await use(cache(), name)
    assert "password" not in str(failed.value)
    await use(cache(logins=Logins({registry.host: ("user", "password")})), name)


async def test_a_login_does_not_follow_a_redirect_to_another_host(cache: Cache, registry: LoopbackRegistry) -> None:
    async with LoopbackRegistry() as storage:
        registry.login = "user:password"
        name = registry.push("team/x", [BASE])
        storage.blobs, registry.redirect_to = registry.blobs, f"http://{storage.host}"
        await use(cache(logins=Logins({registry.host: ("user", "password")})), name)
    assert registry.secrets
    assert storage.secrets == []


async def test_a_mirror_is_asked_first_and_the_registry_where_it_has_nothing(
    cache: Cache, registry: LoopbackRegistry
) -> None:
    async with LoopbackRegistry() as mirror:
        mirrors = {f"{registry.host}/team": [f"http://{mirror.host}/copy"]}
        mirror.push("copy/x", [BASE])
        both = cache(mirrors=mirrors)
        await use(both, f"docker://{registry.host}/team/x")
        assert not registry.asked
        await use(both, registry.push("team/y", [TOP]))
        assert registry.asked


OFFICIAL = (
    "astropy__astropy-12907", "django__django-11099", "matplotlib__matplotlib-18869", "mwaskom__seaborn-3069",
    "pallets__flask-5014", "psf__requests-1142", "pydata__xarray-2905", "pylint-dev__pylint-4551",
    "pytest-dev__pytest-10051", "scikit-learn__scikit-learn-10297", "sphinx-doc__sphinx-10323", "sympy__sympy-11618",
)  # fmt: skip


async def test_swe_benchs_own_images_come_from_a_mirror_by_one_pattern(
    cache: Cache, registry: LoopbackRegistry, tmp_path: Path
) -> None:
    mapping = tmp_path / "images.json"
    mapping.write_text('{"*": "docker://swebench/sweb.eval.x86_64.{name_1776}:latest"}')
    mirrored = cache(mirrors={"docker.io/swebench": [f"http://{registry.host}/hub"]})
    for instance in OFFICIAL:
        registry.push(f"hub/sweb.eval.x86_64.{instance.replace('__', '_1776_')}", [BASE])
        name = image_of(SweTask(instance_id=instance), {MAPPING: str(mapping)})
        assert (await use(mirrored, name) / "etc/keep").exists(), name


HOSTILE = {
    "a path that leaves": [file("../../escaped", b"x")],
    "an absolute path that leaves": [file("/../escaped", b"x")],
    "through a link": [other("out", tarfile.SYMTYPE, "/var/tmp"), file("out/escaped", b"x")],
    "through a relative link": [other("out", tarfile.SYMTYPE, "../../.."), file("out/escaped", b"x")],
    "a hard link out": [other("hard", tarfile.LNKTYPE, "../../../etc/passwd")],
    "a hard link through a link": [other("out", tarfile.SYMTYPE, "/etc"), other("hard", tarfile.LNKTYPE, "out/passwd")],
    "too deep": [file("/".join("d" * 300), b"x")],
    "a whiteout of the parent": [file("a/.wh...")],
}


def escaped(place: Path | None = None) -> list[Path]:
    """What hostile layers have written outside of their directory."""
    found = [path for path in (Path("/var/tmp/escaped"), Path("/escaped")) if path.exists()]
    return [*found, *(place.rglob("escaped") if place else ())]


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_layer_is_refused_and_writes_nothing_outside(
    cache: Cache, registry: LoopbackRegistry, place: Path, what: str
) -> None:
    with pytest.raises(ImageUnavailable, match="cannot be unpacked: Hostile") as failed:
        await use(cache(), registry.push("evil", [archive(HOSTILE[what])]))
    assert not failed.value.retryable
    assert escaped(place) == []


async def test_devices_and_pipes_are_left_out(cache: Cache, registry: LoopbackRegistry) -> None:
    layer = archive([other("dev/sda", tarfile.BLKTYPE), other("pipe", tarfile.FIFOTYPE), file("fine", b"fine")])
    assert tree(await use(cache(), registry.push("x", [layer]))) == {"fine": "fine"}


async def test_links_of_an_image_lead_nowhere_on_the_host(cache: Cache, registry: LoopbackRegistry) -> None:
    """A link of one layer is replaced, not followed, by a directory of the next; so is one named by a whiteout."""
    below = archive([other("out", tarfile.SYMTYPE, "/var/tmp"), other("etc", tarfile.SYMTYPE, "/var/tmp")])
    above = archive([file("out/escaped", b"x"), file("etc/.wh..wh..opq"), file("etc/.wh.something")])
    path = await use(cache(), registry.push("x", [below, above]))
    assert (path / "out" / "escaped").read_text() == "x"
    assert escaped() == []


async def test_a_bomb_is_bounded(cache: Cache, registry: LoopbackRegistry) -> None:
    bomb = archive([file("zeros", bytes(64 << 20))])
    small = cache(limit_bytes=8 << 20)
    with pytest.raises(ImageUnavailable, match="unpacks to more than 8388608 bytes") as failed:
        await use(small, registry.push("bomb", [bomb]))
    assert not failed.value.retryable


async def test_an_image_above_the_limit_is_refused_before_it_is_fetched(
    cache: Cache, registry: LoopbackRegistry
) -> None:
    with pytest.raises(ImageUnavailable, match="PRORL_IMAGES_BYTES"):
        await use(cache(limit_bytes=1 << 20), registry.push("big", [BULK], media=PLAIN))
    assert not registry.sent


async def test_a_blob_that_is_longer_than_it_was_said_to_be_is_cut_off(
    cache: Cache, registry: LoopbackRegistry
) -> None:
    with pytest.raises(ImageUnavailable, match="is longer than its 10 bytes"):
        await use(cache(), registry.push("liar", [BASE], size=10))


async def test_room_is_made_by_images_that_nobody_keeps_with_their_layers(
    cache: Cache, registry: LoopbackRegistry
) -> None:
    names = {each: registry.push(each, [archive([file(each, os.urandom(1 << 20))])]) for each in ("a", "b", "c", "d")}
    kept: set[str] = set()

    async def keep() -> set[str]:
        return kept

    tight = cache(limit_bytes=5 << 19, keep=keep)
    kept.add((await use(tight, names["a"])).parent.name)
    held = await tight.fetch(names["b"])
    await use(tight, names["c"])
    await use(tight, names["d"])
    assert held.path.exists()
    found = {path.name for path in tight.directory.glob("*/image/?")}
    assert {"a", "b"} <= found
    assert "c" not in found
    assert len(list(tight.directory.glob(f"{LAYER}*"))) == 3
    held.close()


async def test_the_variables_of_an_image_are_those_of_its_configuration(
    cache: Cache, registry: LoopbackRegistry, place: Path
) -> None:
    given = ["PATH=/opt/conda/bin:/usr/bin", "LANG=de", "EMPTY=", "HOME=/root", "no name=x", "NUL=a\0b", "EQUALS=a=b"]
    path = await use(cache(), registry.push("x", [BASE], env=given))
    assert environment_of(path) == {
        "PATH": "/opt/conda/bin:/usr/bin", "LANG": "de", "EMPTY": "", "EQUALS": "a=b",
    }  # fmt: skip
    (place / "image").mkdir()
    (place / "config.json").write_text('{"config": {"Env": ["A=1"]}}')
    assert environment_of(place / "image") == {}, "a directory that merely has such a file beside it"


async def test_more_variables_than_a_command_may_have_are_refused(cache: Cache, registry: LoopbackRegistry) -> None:
    with pytest.raises(ImageUnavailable, match="sets more than 262144 bytes of variables") as failed:
        await use(cache(), registry.push("x", [BASE], env=["A=" + "a" * (256 << 10)]))
    assert not failed.value.retryable


async def test_a_place_to_mount_on_is_not_made_through_a_link_of_the_image(
    cache: Cache, registry: LoopbackRegistry, place: Path
) -> None:
    (place / "host").mkdir()
    (place / "host").chmod(0o777)
    path = await use(cache(), registry.push("x", [archive([other("var", tarfile.SYMTYPE, str(place / "host"))])]))
    assert list((place / "host").iterdir()) == []
    assert (path / "etc").is_dir()


async def test_content_of_an_entry_of_no_known_type_is_bounded_too(cache: Cache, registry: LoopbackRegistry) -> None:
    entry, _ = other("zeros", b"Z")
    entry.size = 64 << 20
    with pytest.raises(ImageUnavailable, match="unpacks to more than 8388608 bytes"):
        await use(cache(limit_bytes=8 << 20), registry.push("bomb", [archive([(entry, bytes(64 << 20))])]))


async def test_a_registry_that_only_drips_is_given_up_and_what_came_stays(
    cache: Cache, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SLOW_S", 0.3)
    name = registry.push("big", [BULK], media=PLAIN)
    registry.bytes_per_s = 200_000
    with pytest.raises(ImageUnavailable, match="too slow") as failed:
        await use(cache(), name)
    assert failed.value.retryable
    registry.bytes_per_s = None
    await use(cache(), name)
    assert registry.ranges
