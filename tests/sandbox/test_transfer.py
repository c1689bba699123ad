"""Large files carried in and out, a piece at a time."""

import asyncio
import os
import random
import re
import tracemalloc
from pathlib import Path

import pytest

from sandbox.errors import SandboxGone
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.protocol import Sandbox, SandboxLimits, SandboxSpec
from tests.sandbox.conftest import EVERYWHERE, Create

pytestmark = pytest.mark.anyio
everywhere = pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)
isolated = pytest.mark.parametrize("kind", ["apptainer", "bubblewrap", "bubblewrap-without-python"], indirect=True)

REPLACED = b'.encode("utf-8", "replace")\n    connection.sendall'
SIZE = 1_000_000_000
AT = (0, 123_456_789, 500_000_000, SIZE - 5000)  # where the large file is not zero


@pytest.fixture
def noise() -> bytes:
    return random.Random(7).randbytes(3 << 20)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of the host with nothing else in it."""
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


@pytest.fixture
def source(place: Path, noise: bytes) -> Path:
    path = place / "source"
    path.write_bytes(noise)
    return path


@pytest.fixture
def small(place: Path) -> Path:
    path = place / "small"
    path.write_text("new")
    return path


def write_large(path: Path, noise: bytes) -> None:
    with path.open("wb") as stream:
        for at in AT:
            stream.seek(at)
            stream.write(noise[:5000])


def read_large(path: Path) -> list[bytes]:
    with path.open("rb") as stream:
        return [os.pread(stream.fileno(), 5000, at) for at in AT]


def make_endless(path: Path) -> None:
    """As good as endless."""
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def most_memory_bytes(pid: int) -> int:
    """Of a process, ever."""
    most = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert most is not None
    return int(most[1]) << 10


def blocks_of(path: Path) -> int:
    return path.stat().st_blocks


def size_of(path: Path) -> int:
    return path.stat().st_size


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@everywhere
async def test_a_file_comes_back_as_it_went_in(sandbox: Sandbox, source: Path, place: Path, noise: bytes) -> None:
    await sandbox.upload(source, "deep/down/file")
    await sandbox.download("deep/down/file", place / "target")
    assert (place / "target").read_bytes() == noise
    assert await sandbox.read_file("deep/down/file") == noise
    assert (await sandbox.bash("ls -A deep/down")).output == "file\n"
    assert names_in(place) == ["source", "target"]


@everywhere
async def test_an_empty_file_and_one_that_ends_in_zeros_keep_their_size(sandbox: Sandbox, place: Path) -> None:
    for content in (b"", bytes(1000), b"x" + bytes(1 << 20)):
        (place / "source").write_bytes(content)
        await sandbox.upload(place / "source", "file")
        await sandbox.download("file", place / "target")
        assert (place / "target").read_bytes() == content


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_gigabyte_passes_without_being_held_in_memory(create: Create, place: Path, noise: bytes) -> None:
    sandbox = await create(limits=SandboxLimits(disk_bytes=SIZE + (1 << 20)))
    write_large(place / "source", noise)
    tracemalloc.start()
    try:
        await sandbox.upload(place / "source", "file")
        await sandbox.download("file", place / "target")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert most_memory_bytes(sandbox.handle.pid) < 64 << 20
    assert size_of(place / "target") == SIZE
    assert read_large(place / "target") == read_large(place / "source")
    inside_bytes, inside_blocks = map(int, (await sandbox.bash("stat -c '%s %b' file")).output.split())
    assert inside_bytes == SIZE
    assert max(inside_blocks, blocks_of(place / "target")) < 10_000


@everywhere
async def test_permissions_go_with_the_file_unless_said(sandbox: Sandbox, source: Path, place: Path) -> None:
    set_mode(source, 0o750)
    await sandbox.upload(source, "same")
    await sandbox.upload(source, "other", mode=0o600)
    assert (await sandbox.bash("stat -c %a same other; chmod 6777 same")).output == "750\n600\n"
    await sandbox.download("same", place / "target")
    assert mode_of(place / "target") == 0o755


@everywhere
async def test_a_link_stays_and_what_it_leads_to_is_replaced(sandbox: Sandbox, source: Path, noise: bytes) -> None:
    await sandbox.bash("mkdir a b; echo old > a/real; ln -s ../a/real b/link")
    await sandbox.upload(source, "a/../b/link")
    assert (await sandbox.bash("readlink b/link")).output == "../a/real\n"
    assert await sandbox.read_file("a/real") == noise


NOT_UTF_8 = r"""d=$'\xff\xfe-d\xe9'; f=$'f\xe9\x80'; """
LINKED = f"""{NOT_UTF_8} mkdir "$d"; echo old > "$d/$f"; ln -s "$d/$f" file; ln -s "$d" directory
ln -s "$d/new/$f" new; ln -s "$d/$f/no" no"""


@everywhere
async def test_a_link_to_a_name_that_is_not_utf_8_is_followed(sandbox: Sandbox, small: Path) -> None:
    assert (await sandbox.bash(LINKED)).exit_code == 0
    for name, place in (("file", '"$d/$f"'), ("new", '"$d/new/$f"'), ("directory/plain", '"$d/plain"')):
        await sandbox.upload(small, name)
        assert await sandbox.read_file(name) == b"new"
        found = await sandbox.run(["bash", "-c", f"{NOT_UTF_8} cat {place}"])
        assert found.stdout == b"new", place
    assert (await sandbox.bash("ls -lA | grep -c -- '-> '")).output == "4\n"  # the links have stayed


@everywhere
async def test_an_error_at_a_name_that_is_not_utf_8_shows_the_rest_of_it(sandbox: Sandbox, source: Path) -> None:
    await sandbox.bash(LINKED)
    for error, name in ((IsADirectoryError, "directory"), (FileExistsError, "no")):
        with pytest.raises(error, match=r"\?\?-d\?"):
            await sandbox.upload(source, name)
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_a_server_that_names_it_as_it_is_would_give_no_answer(tmp_path: Path, source: Path) -> None:
    """The control: text of JSON has no half characters."""

    def plain(server: bytes) -> bytes:
        assert server.count(REPLACED) == 1
        return server.replace(REPLACED, REPLACED.replace(b'"utf-8", "replace"', b""))

    provider = BubblewrapProvider("node-1", tmp_path / "state", edit=plain)
    try:
        box = await provider.create(SandboxSpec(owner="o"))
        await box.bash(LINKED)
        with pytest.raises(SandboxGone):
            await box.upload(source, "directory")
        await box.close()
    finally:
        await provider.aclose()


@isolated
async def test_a_link_to_the_hosts_files_leads_nowhere(sandbox: Sandbox, place: Path) -> None:
    (place / "secret").write_text("secret")
    await sandbox.bash(f"ln -s {place}/secret link; ln -s ../../../../../../../..{place}/secret up")
    for name in ("link", "up", f"/proc/1/root{place}/secret", f"../..{place}/secret"):
        with pytest.raises(OSError, match=r"secret|link|up"):
            await sandbox.download(name, place / "target")
    assert names_in(place) == ["secret"]


@everywhere
async def test_what_cannot_be_carried_says_which_file(sandbox: Sandbox, source: Path, place: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing/here"):
        await sandbox.download("nothing/here", place / "target")
    with pytest.raises(IsADirectoryError, match="/tmp"):
        await sandbox.upload(source, "/tmp")
    with pytest.raises(OSError, match="not a regular file"):
        await sandbox.download("/dev/zero", place / "target")
    with pytest.raises(FileNotFoundError, match="no-source"):
        await sandbox.upload(place / "no-source", "file")
    with pytest.raises(FileNotFoundError, match="no-directory"):
        await sandbox.download("/bin/sh", place / "no-directory" / "target")
    assert names_in(place) == ["source"]


@everywhere
async def test_a_file_over_a_limit_leaves_nothing(create: Create, source: Path) -> None:
    sandbox = await create(limits=SandboxLimits(file_bytes=1 << 20))
    await sandbox.write_file("file", b"before")
    with pytest.raises(OSError, match=r"(?i)too large"):
        await sandbox.upload(source, "file")
    assert (await sandbox.bash("ls -A; cat file")).output.splitlines()[-2:] == ["file", "before"]


@isolated
async def test_a_full_disk_leaves_nothing(create: Create, source: Path) -> None:
    """A local sandbox writes to the host's own disk."""
    sandbox = await create(limits=SandboxLimits(disk_bytes=1 << 20))
    with pytest.raises(OSError, match="No space left"):
        await sandbox.upload(source, "file")
    assert (await sandbox.bash("ls -A")).output == ""


@everywhere
async def test_a_cancelled_transfer_leaves_nothing(sandbox: Sandbox, place: Path) -> None:
    """A source without end: the transfer is still at work, whenever it is cancelled."""
    make_endless(place / "source")
    (place / "target").write_bytes(b"before")
    await sandbox.bash("head -c 1M /dev/zero > big; echo before > file")
    sending = asyncio.create_task(sandbox.upload(place / "source", "file"))
    await sandbox.bash("until ls -A | grep -q part; do :; done", timeout_s=100)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    result = await sandbox.bash("while ls -A | grep -q part; do :; done; echo *; cat file", timeout_s=100)
    assert result.output.splitlines() == ["big file", "before"]
    for after in range(1, 12):
        receiving = asyncio.create_task(sandbox.download("big", place / "target"))
        for _ in range(after):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        assert [name for name in names_in(place) if name.endswith(".part")] == []
    assert size_of(place / "target") in (6, 1 << 20)


@everywhere
async def test_a_file_that_shrinks_meanwhile_is_an_error_not_a_half(sandbox: Sandbox, place: Path) -> None:
    shrinking = asyncio.create_task(sandbox.bash("while :; do : > file; done", timeout_s=60))
    async with asyncio.timeout(60):
        while True:
            await sandbox.run(["dd", "if=/dev/null", "of=file", "bs=1", "seek=100M"])
            try:
                await sandbox.download("file", place / "target")
            except OSError as error:
                if "changed while" in str(error):
                    break
    assert names_in(place) in (["target"], [])
    await sandbox.interrupt()
    await shrinking
