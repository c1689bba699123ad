"""Payloads as files: whole under their name or not there, whoever writes beside, and wherever a writer is killed."""

import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.store.payloads import files as module
from prorl_mq.store.payloads.files import GONE, NEW, OldFile, PayloadDamaged, PayloadFiles
from prorl_mq.store.payloads.name import PayloadFile, named_file
from tests.payloads.conftest import OLD_S, TENANT, age, under

ODD = [".", "..", ".new-a", "a/b", "%2E", "acme", "A", "\N{SNOWMAN}", "a b"]
NAMES = st.one_of(st.sampled_from(ODD), st.text(min_size=1, max_size=9))
A64 = 64 * "a"


@given(st.binary(max_size=300), st.sampled_from(["acme", "other"]))
@settings(max_examples=50, deadline=None)
def test_what_was_put_is_what_is_read(data: bytes, tenant: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        files = PayloadFiles(Path(name), "t")
        put = files.write(tenant, data)
        assert files.read(tenant, put) == data
        assert named_file(str(put)) == put
        assert files.write(tenant, data) == put
        assert len(under(Path(name))) == 1


@given(NAMES, NAMES)
@settings(max_examples=100, deadline=None)
def test_tenants_of_any_name_have_folders_of_their_own_below_the_directory(one: str, other: str) -> None:
    files, name = PayloadFiles(Path("/d"), "t"), PayloadFile.of(b"x")
    assert (files.path(one, name) == files.path(other, name)) == (one == other)
    assert os.path.normpath(files.path(one, name)) == str(files.path(one, name))
    assert len(files.path(one, name).relative_to("/d").parts) == 4


def test_an_owner_without_a_name_is_refused(files: PayloadFiles) -> None:
    with pytest.raises(ValueError, match="this one has none"):
        files.write("", b"x")


@pytest.mark.parametrize(
    "text",
    ["", "{t}:blob:a:r:g:0:1:trajectory", f"file:01:{A64}", f"file:1:{A64[1:]}", f"file:1:{A64.upper()}",
     f"file:-1:{A64}", f"file:1:{A64}/../b"],
)  # fmt: skip
def test_no_other_text_names_a_file(text: str) -> None:
    assert named_file(text) is None


def test_nobody_else_may_enter(files: PayloadFiles) -> None:
    path = files.path(TENANT, files.write(TENANT, b"secret"))
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, *list(path.parents)[:3])]
    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_a_tenant_that_names_anothers_digest_gets_nothing(files: PayloadFiles) -> None:
    name = files.write(TENANT, b"mine")
    with pytest.raises(FileNotFoundError):
        files.read("other", name)


@pytest.mark.parametrize("kept", [0, 3, 7])
def test_a_truncated_file_is_not_read(files: PayloadFiles, kept: int) -> None:
    name = files.write(TENANT, b"12345678")
    os.truncate(files.path(TENANT, name), kept)
    with pytest.raises(PayloadDamaged, match=f"it has {kept} of its 8 bytes"):
        files.read(TENANT, name)
    assert files.fault(TENANT, name) == f"has {kept} of its 8 bytes"


@pytest.mark.parametrize("content", [b"12345679", b"123456789"])
def test_a_corrupted_file_is_not_read(files: PayloadFiles, content: bytes) -> None:
    name = files.write(TENANT, b"12345678")
    files.path(TENANT, name).write_bytes(content)
    with pytest.raises(PayloadDamaged):
        files.read(TENANT, name)


def test_putting_it_again_repairs_a_file(files: PayloadFiles) -> None:
    name = files.write(TENANT, b"12345678")
    files.path(TENANT, name).write_bytes(b"1234")
    files.write(TENANT, b"12345678")
    assert files.read(TENANT, name) == b"12345678"


def test_it_is_on_disk_before_it_has_its_name_and_its_name_before_it_is_told(
    files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loss of power leaves, no kill of a process shows."""
    files.write(TENANT, b"first")
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def replaced(*names: Path) -> None:
        done.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    path = files.path(TENANT, files.write(TENANT, b"first"))
    assert done == ["file", "name", "folder"]
    done.clear()
    files.write("other", b"first")
    assert done == ["folder"] * 3 + ["file", "name", "folder"]  # and the folders that were made
    assert path.read_bytes() == b"first"


# Killed between two steps


class Killed:
    """Ends a process of its own by SIGKILL before its step of that number. `done`: it came to its end before."""

    def __init__(self, act: Callable[[], object], step: int) -> None:
        process = os.fork()
        if process == 0:
            left = step

            def counted(of: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **named: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return of(*args, **named)

                return call

            for name in ("mkdir", "open", "fsync", "replace", "rename", "unlink", "link", "close"):
                setattr(os, name, counted(getattr(os, name)))
            try:
                act()
            finally:
                os._exit(0)
        _, status = os.waitpid(process, 0)
        self.done = os.WIFEXITED(status)


def every_step(act: Callable[[], object], prepare: Callable[[], object]) -> Iterator[int]:
    """After each of them; the last one is the whole act."""
    for step in range(100):
        prepare()
        done = Killed(act, step).done
        yield step
        if done:
            assert step > 1
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("before", [None, b"payload"])
def test_a_writer_killed_anywhere_leaves_a_whole_file_or_none(files: PayloadFiles, before: bytes | None) -> None:
    """And beside it at most what is being written, which goes with the grace time."""
    name, data = PayloadFile.of(b"payload"), b"payload"

    def prepare() -> None:
        if before is not None:
            files.write(TENANT, before)

    for _ in every_step(lambda: files.write(TENANT, data), prepare):
        path = files.path(TENANT, name)
        if before is not None or path.exists():
            assert files.read(TENANT, name) == data
        left = [each for each in under(files.directory) if each != str(path.relative_to(files.directory))]
        assert all(each.rpartition("/")[2].startswith(NEW) for each in left)
        for folder in files.folders():
            files.tidy(folder, time.time() - 60)  # another writer may be at it
            assert all((files.directory / each).exists() for each in left)
            files.tidy(folder, time.time() + 60)
        assert under(files.directory) <= {str(path.relative_to(files.directory))}
        path.unlink(missing_ok=True)


def test_a_collector_killed_anywhere_leaves_a_whole_file_or_none(files: PayloadFiles) -> None:
    name = PayloadFile.of(b"payload")

    def prepare() -> None:
        files.write(TENANT, b"payload")
        age(files, name)

    for _ in every_step(lambda: files.take_away(OldFile(TENANT, name.digest), time.time()), prepare):
        left = under(files.directory)
        assert len(left) <= 1
        [folder] = files.folders()
        files.tidy(folder, time.time() - OLD_S)
        if left:
            assert files.read(TENANT, name) == b"payload"
            assert files.old(folder, time.time()) == [OldFile(TENANT, name.digest)]


# Side by side


class Again(PayloadFiles):
    """A writer puts a file again just when a collector has found it to be old."""

    def put_when_it_moves(self, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
        looked = module._dated

        def dated(path: Path) -> float:
            found = looked(path)
            if not path.name.startswith(GONE):
                self.write(TENANT, data)
            return found

        monkeypatch.setattr(module, "_dated", dated)


def test_a_file_that_is_put_again_while_it_is_collected_stays(
    files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Again(files.directory, "t")
    name = again.write(TENANT, b"payload")
    age(again, name)
    again.put_when_it_moves(monkeypatch, b"payload")
    assert not again.take_away(OldFile(TENANT, name.digest), time.time() - 60)
    assert again.read(TENANT, name) == b"payload"
    assert len(under(files.directory)) == 1


def test_a_collector_that_does_not_look_again_would_take_it(
    files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the one above."""
    again = Again(files.directory, "t")
    name = again.write(TENANT, b"payload")
    age(again, name)
    again.put_when_it_moves(monkeypatch, b"payload")
    path = again.path(TENANT, name)
    if module._dated(path) < time.time() - 60:
        path.unlink()
    with pytest.raises(FileNotFoundError):
        again.read(TENANT, name)


RACE = """
import sys
from pathlib import Path
from prorl_mq.store.payloads import files as module
from prorl_mq.store.payloads.files import GONE, OldFile, PayloadFiles
files, what, dated = PayloadFiles(Path(sys.argv[1]), "t"), sys.argv[2], module._dated
if what == "collect":  # it takes each file for an old one, until it has moved it aside
    module._dated = lambda path: dated(path) if path.name.startswith(GONE) else 0.0
data = [bytes([each]) * 70_000 for each in range(8)]
print("ready", flush=True)
sys.stdin.readline()
for turn in range(30):
    for each in data:
        if what == "write":
            name = files.write("acme", each)
            for _ in range(10_000):
                try:
                    assert files.read("acme", name) == each
                    break
                except FileNotFoundError:  # moved aside for a moment
                    pass
            else:
                raise SystemExit("it does not come back")
        else:
            for folder in files.folders():
                files.tidy(folder, 0.0)
                for old in files.old(folder, 1.0):
                    assert not files.take_away(old, 1.0)
"""


def test_two_writers_and_a_collector_race_and_every_reader_reads(files: PayloadFiles) -> None:
    """The collector moves each file aside, sees that it is young, and puts it back, all the time."""
    argv = (sys.executable, "-c", RACE, str(files.directory))
    racers = [
        subprocess.Popen([*argv, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for what in ("write", "write", "collect")
    ]
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write(b"go\n")
        each.stdin.flush()
    for each in racers:
        _, said = each.communicate(timeout=60)
        assert each.returncode == 0, said.decode()
    assert len(under(files.directory)) == 8


# A file system that is full


@pytest.fixture
def small(tmp_path: Path) -> Iterator[PayloadFiles]:
    """On a file system that has room for two files of 100 kB."""
    if os.geteuid() != 0:
        pytest.skip("mounts a small file system: needs root")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(tmp_path).encode(), b"tmpfs", 0, b"size=256k,mode=700") != 0:
        pytest.skip(f"no tmpfs can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield PayloadFiles(tmp_path, "t")
    finally:
        libc.umount2(str(tmp_path).encode(), 2)


def test_a_full_disk_leaves_nothing_behind(small: PayloadFiles) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT012
        for each in range(8):
            small.write(TENANT, bytes([each]) * 100_000)
    assert raised.value.errno == errno.ENOSPC
    assert len(under(small.directory)) == 2
    assert not [each for each in under(small.directory) if NEW in each]


def test_a_full_disk_can_be_collected(small: PayloadFiles) -> None:
    """The collector needs the time there, and no room for it."""
    name = small.write(TENANT, b"x" * 100_000)
    room = os.statvfs(small.directory)
    (small.directory / "fills it").write_bytes(bytes(room.f_bfree * room.f_frsize))
    with pytest.raises(OSError, match="No space"):
        small.probe()
    age(small, name)
    before = small.now() - OLD_S / 2
    [old] = [old for folder in small.folders() for old in small.old(folder, before)]
    assert small.take_away(old, before)
    assert not small.path(TENANT, name).exists()


def test_a_pipe_in_the_place_of_a_file_keeps_no_reader(files: PayloadFiles) -> None:
    """Opening one waits for whoever writes into it: for good."""
    name = files.write(TENANT, b"x")
    path = files.path(TENANT, name)
    path.unlink()
    os.mkfifo(path)
    told: list[str] = []

    def read() -> None:
        try:
            files.read(TENANT, name)
        except PayloadDamaged as error:
            told.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert told == ["it is no regular file"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from prorl_mq.store.payloads.files import PayloadFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    PayloadFiles(Path(sys.argv[1]), "t").write("acme", bytes(100_000))
except OSError as error:
    print(error.errno)
"""


def test_a_file_that_may_not_grow_leaves_nothing_behind(files: PayloadFiles) -> None:
    argv = [sys.executable, "-c", LIMITED, str(files.directory)]
    said = subprocess.run(argv, capture_output=True, check=True, timeout=60)
    assert said.stdout.decode().strip() == str(errno.EFBIG)
    assert under(files.directory) == set()


def test_a_directory_that_is_gone_is_not_made(files: PayloadFiles) -> None:
    """An unmounted file system would else be written beside, on the disk below."""
    files.directory.rmdir()
    with pytest.raises(FileNotFoundError):
        files.write(TENANT, b"x")
    assert not files.there


def test_a_count_ends_at_its_limit(files: PayloadFiles) -> None:
    for each in range(4):
        files.write(TENANT, bytes(each))
    assert files.held(at_most=10) == (4, 6, True)
    assert files.held(at_most=3)[0::2] == (3, False)
