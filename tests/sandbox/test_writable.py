"""Directories of an image that a sandbox writes to: by copy-on-write, and in the other ways where that is closed."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from sandbox.errors import SandboxStartFailed
from sandbox.host import unprivileged
from sandbox.isolators.apptainer import ApptainerProvider
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.isolators.payload import joined
from sandbox.isolators.writable import ways
from sandbox.isolators.writable.ways import ImageDirectory, OverlayPlan, Way, Ways, run_mounter
from sandbox.lifetime import label
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import Sandbox, SandboxLimits, SandboxProvider, SandboxSpec
from tests.sandbox.checkpoints import python, tree
from tests.sandbox.conftest import ISOLATED, NODE, TOOLS_DIR, copy_program, require_apptainer

pytestmark = pytest.mark.anyio
PLACE = "/testbed"
MIB = 1 << 20
ON_DISK = (Way.OVERLAY_ON_DISK, Way.DISK)
WORK = f"""
set -e
cd {PLACE}
git status --porcelain
rm -rf package/inner
mkdir -p package/inner
echo new >package/inner/new.py
mv package renamed
ln renamed/inner/new.py also.py
echo more >>kept.py
chmod 600 script.sh
git add -A
git -c user.name=a -c user.email=a@b commit -q -m changed
git status --porcelain
git show --stat --format=%s HEAD
ls -R renamed
"""
Make = Callable[..., SandboxProvider]


@pytest.fixture(scope="module")
def image(image_without_python: Path) -> Iterator[Path]:
    """A small image with a repository, whose files belong to who runs the tests."""
    with tempfile.TemporaryDirectory(prefix="prorl-image-", dir="/var/tmp") as name:
        root = Path(name, "image")
        shutil.copytree(image_without_python, root, symlinks=True)
        for directory in (Path(name), root):
            directory.chmod(0o755)
        for program in ("git", "mv", "find", "tar"):
            copy_program(program, root)
        repository = root / PLACE[1:]
        (repository / "package" / "inner").mkdir(parents=True)
        for file in ("kept.py", "script.sh", "package/__init__.py", "package/inner/old.py"):
            (repository / file).write_text(file)
        (repository / "script.sh").chmod(0o755)
        for words in (
            ("init", "-q"),
            ("add", "-A"),
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"),
        ):
            subprocess.run(["git", *words], cwd=repository, check=True)
        for path in (repository, *repository.rglob("*")):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        subprocess.run(["git", "update-index", "--refresh"], cwd=repository, check=True)
        yield root


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the sandboxes' user can reach."""
    with tempfile.TemporaryDirectory(prefix="prorl-state-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(params=ISOLATED)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apptainer":
        require_apptainer()
    return str(request.param)


@pytest.fixture
async def make(anyio_backend: str, kind: str, place: Path) -> AsyncIterator[Make]:
    """Providers of one kind for ways of making directories writable. In the end they have left nothing on disk."""
    made: list[SandboxProvider] = []

    def provider(*allowed: Way) -> SandboxProvider:
        chosen = allowed or tuple(Way)
        if kind == "apptainer":
            made.append(ApptainerProvider(NODE, place, None, TOOLS_DIR, ways=chosen))
        else:
            made.append(BubblewrapProvider(NODE, place, ways=chosen))
        return made[-1]

    yield provider
    for each in made:
        await each.aclose()
    changes = Ways(place).disk
    assert [each for each in changes.iterdir() if not each.name.startswith(".probe-")] == []
    assert list((place / "sandboxes").iterdir()) == []


async def box_of(provider: SandboxProvider, image: Path, limits: SandboxLimits | None = None) -> Sandbox:
    spec = SandboxSpec(owner="test", image=str(image), writable=[PLACE], limits=limits or SandboxLimits())
    return await provider.create(spec)


def way_of(box: Sandbox) -> str:
    made = label.read(Path(box.handle.directory))
    assert made is not None
    return made.writable


def is_there(path: str) -> bool:
    return Path(path).exists()


async def shell(box: Sandbox, script: str) -> str:
    done = await box.run(["sh", "-c", script], timeout_s=60)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode()


def host_shell(script: str) -> str:
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout


def picture(top: Path) -> dict[str, tuple[object, ...]]:
    """Kind, owner, size, time and content of all below a directory."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted((top, *top.rglob("*"))):
        seen = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_nlink, seen.st_mtime_ns, content)
    return found


async def test_directories_of_an_image_can_be_removed_moved_and_linked_and_the_image_stays(
    make: Make, image: Path
) -> None:
    before = picture(image / PLACE[1:])
    box = await box_of(make(), image)
    assert way_of(box) == "overlay"
    said = await shell(box, WORK)
    assert said.startswith("changed\n"), said
    assert "renamed/inner:\nnew.py\n" in said
    other = await box_of(make(), image)
    assert await shell(other, f"cat {PLACE}/package/inner/old.py") == "package/inner/old.py"
    await box.close()
    await other.close()
    assert picture(image / PLACE[1:]) == before


async def test_times_and_modes_are_those_of_the_image(make: Make, image: Path) -> None:
    """Builds and git look at times: they take an unchanged tree for unchanged."""
    look = "find {} -path '*/.git' -prune -o -printf '%P %y %m %T@\\n'"
    box = await box_of(make(), image)
    outside = host_shell(look.format(image / PLACE[1:]))
    assert sorted((await shell(box, look.format(PLACE))).splitlines()) == sorted(outside.splitlines())
    assert await shell(box, f"cd {PLACE} && stat -c '%a %Y' . && git status --porcelain") == "755 1700000000\n"
    assert len(set((await shell(box, f"find {PLACE} -printf '%D '")).split())) == 1
    await box.close()


@pytest.mark.parametrize("way", [Way.OVERLAY_ON_DISK, Way.DISK, Way.MEMORY])
async def test_the_other_ways_do_the_same_and_leave_nothing(make: Make, image: Path, way: Way) -> None:
    """Also of a directory that the agent has shut."""
    before = picture(image / PLACE[1:])
    box = await box_of(make(way), image)
    assert way_of(box) == way
    assert (await shell(box, f"{WORK}\nmkdir -p shut/in && touch shut/in/f && chmod 0 shut/in shut")).startswith(
        "changed\n"
    )
    made = label.read(Path(box.handle.directory))
    assert made is not None
    assert bool(made.disk) == (way in ON_DISK)
    await box.close()
    assert picture(image / PLACE[1:]) == before


async def test_a_repository_of_2_gb_is_ready_within_64_mb(make: Make, image: Path, place: Path) -> None:
    """It costs neither memory nor copies. The control: what is copied into memory does not fit."""
    root = place / "image"
    shutil.copytree(image, root, symlinks=True)
    with (root / PLACE[1:] / "large").open("wb") as file:
        file.truncate(2 << 30)
    tight = SandboxLimits(disk_bytes=64 * MIB)
    box = await box_of(make(), root, tight)
    assert way_of(box) == "overlay"
    assert await shell(box, f"cd {PLACE}; echo more >>kept.py; find large -printf %s") == f"{2 << 30}"
    await box.close()
    os.truncate(root / PLACE[1:] / "large", 80 * MIB)
    with pytest.raises(SandboxStartFailed):
        await box_of(make(Way.MEMORY), root, tight)


async def test_changes_are_held_to_the_limit_of_the_disk(make: Make, image: Path) -> None:
    box = await box_of(make(), image, SandboxLimits(disk_bytes=8 * MIB))
    done = await box.run(["sh", "-c", f"head -c 64M /dev/zero >{PLACE}/big"])
    assert done.exit_code != 0
    done = await box.run(["stat", "-c", "%s", f"{PLACE}/big"])
    if b"over the disk limit" in done.stderr:  # seen only now: once
        done = await box.run(["stat", "-c", "%s", f"{PLACE}/big"])
    assert int(done.stdout) <= 8 * MIB
    await box.close()


@pytest.mark.parametrize("way", ON_DISK)
async def test_changes_on_disk_are_held_to_it_too_wherever_they_hide(make: Make, image: Path, way: Way) -> None:
    box = await box_of(make(way), image, SandboxLimits(disk_bytes=8 * MIB))
    script = f"cd {PLACE} && mkdir shut && head -c 32M /dev/zero >shut/big; chmod 0 shut; sleep 50"
    done = await box.bash(script, timeout_s=40)  # the first of all: what it writes is not taken for the image's
    assert re.search(rf"over the disk limit: .*{PLACE} take \d+ MiB of 8 MiB", done.output), done
    await box.close()


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_files_of_another_user_are_copied_where_an_overlay_could_not_write_them(
    make: Make, image: Path, place: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    strange = place / "image"
    shutil.copytree(image, strange, symlinks=True)
    os.chown(strange / "testbed/kept.py", 12345, 12345)
    box = await box_of(make(), strange)
    assert way_of(box) == "copy on disk"
    assert await shell(box, f"echo x >>{PLACE}/kept.py && tail -c 2 {PLACE}/kept.py") == "x\n"
    await box.close()


def test_images_of_root_and_of_the_sandboxes_user_can_both_be_overlaid(image: Path, place: Path) -> None:
    own = place / "own"
    own.mkdir()
    (own / "file").touch()
    if os.geteuid() == 0:
        os.chown(own, *unprivileged.identity())
        os.chown(own / "file", *unprivileged.identity())
    found = Ways(place)
    for path in (own, image / PLACE[1:]):
        assert found.problem(Way.OVERLAY, found.placed(PLACE, [str(path)])) == ""


def test_without_attributes_of_users_an_overlay_is_refused(
    image: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: it can be mounted, and then no directory of the image can be removed and made again."""

    def crippled(modules: object) -> bytes:
        source = joined(modules)  # type: ignore[arg-type]
        assert source.count(b'"userxattr,') == 1
        return source.replace(b'"userxattr,', b'"')

    monkeypatch.setattr(ways, "joined", crippled)
    found = Ways(place)
    directory = found.placed(PLACE, [str(image / PLACE[1:])])
    assert "probe: Input/output error" in found.problem(Way.OVERLAY, directory)
    assert found.best(directory) == Way.DISK


def test_an_image_of_several_layers_is_overlaid_with_what_they_hide(place: Path) -> None:
    for name, files in (("base", ("a/x", "a/y", "b")), ("top", ("a/z",))):
        for file in files:
            path = place / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    os.setxattr(place / "top" / "a", "user.overlay.opaque", b"y")
    found = Ways(place)
    directory = found.placed(PLACE, [str(place / "top"), str(place / "base")])
    plan = OverlayPlan(user=found.user, base=found.base, size=MIB, disk="", places=[directory])
    script = f"cd {found.base}/0/m && ls a && cat b && rm -r a && ls"
    done = run_mounter(plan, "/bin/sh", "-c", script)
    assert (done.stdout, done.stderr) == (b"z\nbaseb\n", b"")


def test_a_directory_without_files_cannot_show_that_copies_share_them(place: Path) -> None:
    (place / "empty").mkdir()
    directory = ImageDirectory(path=PLACE, lowers=(str(place / "empty"),))
    assert "no file to try it with" in Ways(place).problem(Way.REFLINK, directory)


def test_a_directory_without_files_does_not_speak_for_its_file_system(place: Path) -> None:
    (place / "empty").mkdir()
    (place / "full").mkdir()
    (place / "full" / "file").write_text("x")
    found = Ways(place)
    empty, full = (ImageDirectory(path=PLACE, lowers=(str(place / name),)) for name in ("empty", "full"))
    assert "no file to try it with" in found.problem(Way.REFLINK, empty)
    assert "no file to try it with" not in found.problem(Way.REFLINK, full)


async def test_checkpoints_see_what_changes_in_an_overlay(make: Make) -> None:
    """A file of the image has another inode from the first write on. Its directories can be moved, not renamed."""
    require_apptainer()
    base = TOOLS_DIR.resolve() / "images" / "base"
    places = ("/usr/share/readline", "/usr/share/perl5")
    provider = make(Way.OVERLAY)
    boxes = []
    for owner in ("job:1", "job:2"):
        boxes.append(await provider.create(SandboxSpec(owner=owner, image=str(base), writable=places)))
        assert list(await boxes[-1].mark()) == []
    box, other = boxes
    assert (await box.save()).data is None
    await shell(box, "echo more >>/usr/share/readline/inputrc")
    saved = await box.save()
    assert (saved.files, list(saved.lost)) == (2, [])  # its directory, too: the layer of changes has an entry there now
    await shell(
        box, "cd /usr/share/perl5 && rm -r Debian && mv Text Moved && chmod 700 Git && mkdir Debian && touch Debian/f"
    )
    saved = await box.save()
    assert saved.data is not None
    assert list(saved.lost) == []
    await other.restore(saved.data)
    assert await tree(other, *places) == await tree(box, *places)
    with pytest.raises(AssertionError, match="Invalid cross-device link"):
        await python(box, "import os; os.rename('/usr/share/perl5/Error', '/usr/share/perl5/moved')")
    for each in boxes:
        await each.close()


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_an_image_may_be_named_by_a_relative_path(
    make: Make, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(image.parent)
    box = await box_of(make(), Path(image.name))
    assert await shell(box, f"echo x >{PLACE}/new && cat {PLACE}/new") == "x\n"
    await box.close()


async def test_a_place_that_is_not_of_the_image_or_that_the_sandbox_needs_is_refused(image: Path, place: Path) -> None:
    """Without an image, bubblewrap shows the host's /usr; what else the host has is not to be given away."""
    provider = BubblewrapProvider(NODE, place)
    for path in ("/", "/proc", "/dev", "/opt/prorl/server", "testbed", f"{PLACE}/../etc"):
        spec = SandboxSpec(owner="test", image=str(image))
        for asked in (msgspec.structs.replace(spec, writable=[path]), msgspec.structs.replace(spec, empty=[path])):
            with pytest.raises(SandboxStartFailed, match=re.escape(repr(path))):
                await provider.create(asked)
    with pytest.raises(SandboxStartFailed, match="'/root' would be this machine's own"):
        await provider.create(SandboxSpec(owner="test", writable=["/root"]))
    await provider.aclose()


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_what_lies_too_deep_for_a_path_is_removed_with_its_sandbox(make: Make, image: Path) -> None:
    """shutil.rmtree ends in a RecursionError there, or has too many directories open."""
    dig = f"set -e; cd {PLACE}; i=0; while [ $i -lt 1500 ]; do mkdir d; cd d; i=$((i+1)); done; echo x >file; chmod 0 ."
    box = await box_of(make(Way.DISK), image)
    await shell(box, dig)
    made = label.read(Path(box.handle.directory))
    assert made is not None
    await box.close()
    assert not is_there(made.disk)


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_what_cannot_be_removed_keeps_its_label_until_a_sweep_can(
    make: Make, image: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await box_of(make(Way.DISK), image)
    made = label.read(Path(box.handle.directory))
    assert made is not None
    with monkeypatch.context() as broken:
        broken.setattr(label, "remove_tree", lambda _: None)
        await box.close()
    assert is_there(made.disk)
    assert await sweep(place, lambda _: False) == []
    assert not is_there(made.disk)


@pytest.mark.parametrize("way", [Way.OVERLAY, *ON_DISK])
async def test_an_image_may_have_its_own_in_the_places_of_every_sandbox(make: Make, image: Path, way: Way) -> None:
    """What lies on disk is not taken for memory of the sandbox's own: all that others keep on the disk would count."""
    (image / "workspace").mkdir(exist_ok=True)
    (image / "workspace/of-image").write_text("x")
    (image / "home").mkdir(exist_ok=True)
    spec = SandboxSpec(
        owner="test", image=str(image), writable=["/workspace/", "/home", PLACE, "/workspace"],
        limits=SandboxLimits(disk_bytes=64 * MIB),
    )  # fmt: skip
    box = await make(way).create(spec)
    done = await box.bash("pwd && ls && touch $HOME/a /home/b mine && sleep 0.8 && echo done")
    assert done.output == "/workspace\nof-image\ndone\n", done
    await box.close()
