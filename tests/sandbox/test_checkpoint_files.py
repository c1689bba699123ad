"""Files in a checkpoint: a restored sandbox has those of the saved one, and no other."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import SandboxUnavailable
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import Sandbox, SandboxSpec
from sandbox.server.checkpoint.tree import settled_scan
from tests.sandbox.checkpoints import carry_over, pair, python, tree
from tests.sandbox.conftest import ISOLATED, NODE, TOOLS_DIR, Create

everywhere = pytest.mark.parametrize("kind", ISOLATED, indirect=True)
one_kind = pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)

PREPARE = r"""
cd /workspace; umask 022
mkdir -p old/deep/er kept shut/in; echo 1 >old/deep/er/file; echo 2 >old/file; echo 3 >kept/same; echo 4 >kept/changed
echo 5 >becomes-directory; mkdir becomes-file; echo 6 >becomes-file/within; ln -s kept link; echo 7 >shut/in/file
echo 8 >first; ln first second; echo 9 >times; echo 10 >mode; echo 11 >/tmp/scrap
find /workspace /tmp -exec touch -h -d '2026-01-01 10:00' {} +; chmod 500 kept; chmod 000 shut
"""
CHANGE = r"""
import os, socket
os.chdir("/workspace")
import shutil
shutil.rmtree("old/deep")
with open("kept/changed", "w") as f: f.write("longer than before")
os.unlink("becomes-directory"); os.mkdir("becomes-directory"); open("becomes-directory/inner", "w").close()
shutil.rmtree("becomes-file"); open("becomes-file", "w").write("now a file")
os.unlink("link"); os.symlink("/nowhere/at/all", "link"); os.symlink("../tmp", "another")
os.utime("link", ns=(5, 1234567891), follow_symlinks=False)
os.unlink("second"); os.link("times", "third"); os.mkdir("empty"); os.mkfifo("pipe", 0o640)
os.utime("times", ns=(10**18 + 7, 10**18 + 7)); os.utime("empty", ns=(-10**15, -10**15))
os.chmod("mode", 0o6751)
open("nothing", "w").close()
with open("sparse", "wb") as f:
    f.write(b"start"); f.seek(50 << 20); f.write(b"middle"); f.truncate(100 << 20)
with open(b"odd \xff\n\x01'\" name", "wb") as f: f.write(bytes(range(256)) * 1000)
os.makedirs(b"a/\xfe/b"); open(b"a/\xfe/b/c", "w").write("deep")
open("hidden", "w").write("secret"); os.chmod("hidden", 0)
os.mkdir("locked"); open("locked/file", "w").write("within"); os.chmod("locked", 0)
os.chmod("shut", 0o700); open("shut/in/file", "a").write("more"); os.chmod("shut", 0)
os.unlink("/tmp/scrap"); open("/tmp/new", "w").write("new")
os.makedirs("/home/agent/.cache/x"); open("/dev/shm/s", "w").close()
os.chmod("/workspace", 0o770)
"""


@everywhere
@pytest.mark.anyio
async def test_every_kind_of_file_is_restored(create: Create) -> None:
    one, other = await pair(create, prepare=PREPARE)
    await python(one, CHANGE)
    await carry_over(one, other)
    assert await tree(other) == await tree(one)


@everywhere
@pytest.mark.anyio
async def test_an_archive_has_all_since_the_mark_and_there_is_none_without_a_change(create: Create) -> None:
    one, other = await pair(
        create, prepare="cd /workspace; echo old >old; echo gone >gone; touch -d 2026-01-01 old gone"
    )
    first = await one.save()
    assert (first.data, first.digest, first.lost) == (None, "", ())
    await one.bash("echo 1 >one; rm gone")
    second = await one.save()
    assert second.data is not None
    assert second.files == 3  # with their directory
    await one.bash("cat one >/dev/null; true")
    third = await one.save()
    assert (third.data, third.digest) == (None, second.digest)
    await one.bash("echo 2 >two; echo changed >old")
    fourth = await one.save()
    assert fourth.data is not None
    assert fourth.digest != second.digest
    await other.restore(fourth.data)
    assert await tree(other) == await tree(one)
    again = await other.save()
    assert (again.data, again.digest) == (None, fourth.digest)
    await other.bash("rm one")
    assert (await other.save()).data is not None


@one_kind
@pytest.mark.anyio
async def test_a_change_of_the_same_size_and_time_is_seen(create: Create) -> None:
    """Whoever sets a file's time back cannot set the time of its last change."""
    one, other = await pair(create, prepare="echo aaa >file; touch -d '2026-01-01' file")
    await one.bash("echo bbb >file; touch -d '2026-01-01' file; touch -d '2026-01-01' .")
    await carry_over(one, other)
    assert (await other.read_file("/workspace/file")) == b"bbb\n"
    await one.bash("echo ccc >file; touch -d '2026-01-01' file")
    assert (await one.save()).data is not None


@one_kind
@pytest.mark.anyio
async def test_changes_right_behind_a_save_are_in_the_next_one(create: Create) -> None:
    """Files' clocks have steps of milliseconds: two writes of the same size within one look alike."""
    box, _ = await pair(create)
    last = ""
    for number in range(30):
        await box.write_file("/workspace/file", b"%02d" % number)
        saved = await box.save()
        assert saved.data is not None
        assert saved.digest != last
        last = saved.digest


@one_kind
@pytest.mark.anyio
async def test_more_than_was_asked_for_is_not_saved(create: Create) -> None:
    box, _ = await pair(create)
    await box.bash("echo >small")
    assert (await box.save()).digest
    await box.bash("head -c 3000000 /dev/urandom >big")
    saved = await box.save(max_bytes=1 << 20)
    assert (saved.data, saved.digest, saved.too_large) == (None, "", True)
    assert saved.lost == ("what has changed: it is more than 1048576 bytes",)
    whole = await box.save()
    assert whole.data is not None
    assert not whole.too_large


@one_kind
@pytest.mark.anyio
async def test_what_no_archive_can_hold_is_said(create: Create) -> None:
    box, _ = await pair(create)
    await python(box, "import socket; socket.socket(socket.AF_UNIX).bind('/workspace/listens')")
    await python(box, "import os; open('/workspace/f', 'w'); os.setxattr('/workspace/f', 'user.note', b'x')")
    await python(box, "import os; open('/workspace/late', 'w'); os.utime('/workspace/late', ns=(0, 1 << 62))")
    lost = (await box.save()).lost
    assert lost == (
        "/workspace/f has extended attributes",
        "/workspace/late has a time that is too far away",
        "/workspace/listens is a socket",
    )
    again = await box.save()
    assert (again.data, again.lost) == (None, lost)


def test_what_changes_behind_a_scan_has_a_later_time_than_all_that_was_seen(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / "file").write_text(str(number))
        found = settled_scan((str(tmp_path),))
        assert found.settled
        assert max(time_ns for _, _, time_ns, _ in found.entries.values()) < time.clock_gettime_ns(5)


NAMES = st.sampled_from(["a", "b", "c", "d\udcff", "e\n"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TIMES = st.integers(-(10**15), 2 * 10**18)
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, st.binary(max_size=40).map(bytes.hex)),
    st.tuples(st.just("hole"), PATHS, st.integers(0, 1 << 20)),
    st.tuples(st.just("append"), PATHS, st.binary(max_size=4).map(bytes.hex)),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, PATHS),
    st.tuples(st.just("fifo"), PATHS),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from([0, 0o111, 0o400, 0o500, 0o644, 0o755, 0o4711])),
    st.tuples(st.just("utime"), PATHS, TIMES),
)
PLAY = r"""
import json, os, shutil, sys
os.chdir("/workspace")
def step(name, path, *more):
    if name == "write": open(path, "wb").write(bytes.fromhex(more[0]))
    if name == "append": open(path, "ab").write(bytes.fromhex(more[0]))
    if name == "hole": open(path, "ab").truncate(more[0])
    if name == "mkdir": os.makedirs(path)
    if name == "remove": shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    if name == "rename": os.rename(path, more[0])
    if name == "link": os.link(path, more[0], follow_symlinks=False)
    if name == "symlink": os.symlink(path, more[0])
    if name == "fifo": os.mkfifo(path)
    if name == "chmod": os.chmod(path, more[0])
    if name == "utime": os.utime(path, ns=(more[0], more[0]), follow_symlinks=False)
for each in json.loads(sys.stdin.read()):
    if each[0] in ("write", "append", "hole") and os.path.exists(each[1]) and not os.path.isfile(each[1]):
        continue
    try: step(*each)
    except OSError: pass
"""


RESET = r"""
import os, shutil
os.chdir("/workspace"); os.chmod(".", 0o755)
def empty(path):
    os.chmod(path, 0o700)
    for each in os.scandir(path):
        if each.is_dir(follow_symlinks=False):
            empty(each.path); os.rmdir(each.path)
        else:
            os.unlink(each.path)
empty(".")
"""
SETTLE = r"""
import os
for root, folders, files in os.walk("/workspace", topdown=False):
    for name in (*folders, *files, "."):
        os.utime(os.path.join(root, name), ns=(0, 10**18), follow_symlinks=False)
"""


class Followed:
    """Two sandboxes, one of which is changed and the other made the same; new ones after a failure."""

    def __init__(self, state_dir: Path) -> None:
        self._provider = make_provider("bubblewrap", node=NODE, state_dir=state_dir, tools_dir=TOOLS_DIR)
        self._boxes: list[Sandbox] = []

    async def follow(self, begin: list[tuple[object, ...]], steps: list[tuple[object, ...]]) -> None:
        while len(self._boxes) < 2:
            self._boxes.append(await self._provider.create(SandboxSpec(owner="job:1")))
        one, other = self._boxes
        try:
            for box in self._boxes:
                await python(box, RESET)
                await python(box, PLAY, stdin=json.dumps(begin).encode())
                await python(box, SETTLE)
                assert list(await box.mark()) == []
            await python(one, PLAY, stdin=json.dumps(steps).encode())
            saved = await one.save()
            assert saved.lost == ()
            if saved.data is not None:
                await other.restore(saved.data)
            assert await tree(other, "/workspace") == await tree(one, "/workspace")
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for box in self._boxes:
            await box.close()
        self._boxes.clear()


def test_any_tree_is_restored_as_it_was(tmp_path: Path) -> None:
    try:
        followed = Followed(tmp_path)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with asyncio.Runner() as runner:

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(STEPS, max_size=12), st.lists(STEPS, min_size=1, max_size=12))
        def follows(begin: list[tuple[object, ...]], steps: list[tuple[object, ...]]) -> None:
            runner.run(followed.follow(begin, steps))

        try:
            follows()
        finally:
            runner.run(followed.close())
