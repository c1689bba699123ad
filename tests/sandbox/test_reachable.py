"""What root binds into a sandbox is read by a user without rights, wherever the project lies."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.host import copies
from sandbox.host.reachable import is_open, reachable
from sandbox.lifetime.sweep import sweep


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory below one that only its owner may enter, and a place for copies that anybody may."""
    monkeypatch.setattr(copies, "PLACE", tmp_path / "copies")
    monkeypatch.setattr(copies, "_held", {})
    (tmp_path / "copies").mkdir()
    (tmp_path / "home" / "python").mkdir(parents=True)
    (tmp_path / "home" / "python" / "it.py").write_text("x = 1")
    (tmp_path / "home").chmod(0o700)
    yield tmp_path / "home" / "python"
    shutil.rmtree(tmp_path / "copies", ignore_errors=True)


def test_what_others_can_reach_is_used_as_it_is() -> None:
    assert reachable(Path("/usr/bin")) == Path("/usr/bin")


def test_a_hidden_directory_is_copied_once(hidden: Path) -> None:
    copy = reachable(hidden)
    assert copy.parent == copies.PLACE
    assert (copy / "it.py").read_text() == "x = 1"
    assert copy.stat().st_mode & 0o777 == 0o755
    (copy / "mark").touch()
    assert reachable(hidden) == copy
    assert (copy / "mark").exists()


def test_a_link_in_the_copys_place_is_not_trusted(hidden: Path, tmp_path: Path) -> None:
    """The place is one that every user may write to."""
    copy = reachable(hidden)
    shutil.rmtree(copy)
    copy.symlink_to(tmp_path)
    with pytest.raises(OSError, match="directory"):
        reachable(hidden)


def test_a_lock_of_a_link_is_refused(hidden: Path, tmp_path: Path) -> None:
    lock = copies.PLACE / (reachable(hidden).name + copies.LOCK)
    (tmp_path / "precious").write_text("mine")
    copies._held.clear()
    lock.unlink()
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(SandboxUnavailable, match="cannot be opened"):
        reachable(hidden)
    assert (tmp_path / "precious").read_text() == "mine"


HOLD = """
import sys, pathlib
from sandbox.host import copies
copies.PLACE = pathlib.Path(sys.argv[1])
print(copies.copy_of(pathlib.Path(sys.argv[2])), flush=True)
input()
"""


def holding(hidden: Path) -> "subprocess.Popen[str]":
    """Another process that uses the copy."""
    command = [sys.executable, "-c", HOLD, str(copies.PLACE), str(hidden)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline()
    return made


@pytest.mark.anyio
@pytest.mark.parametrize("change", ["gone", "changed"])
async def test_a_copy_goes_with_its_original_once_nobody_uses_it(hidden: Path, tmp_path: Path, change: str) -> None:
    """Also where those who used it were killed. The control: while one of them lives, it stays."""
    other = holding(hidden)
    [copy] = [path for path in copies.PLACE.iterdir() if path.is_dir()]
    await sweep(tmp_path / "state", lambda _: True)
    assert copy.exists(), "its original is as it was"
    shutil.rmtree(hidden) if change == "gone" else os.utime(hidden, (1, 1))
    await sweep(tmp_path / "state", lambda _: True)
    assert copy.exists(), "a process uses it"
    other.send_signal(signal.SIGKILL)
    other.communicate()
    await sweep(tmp_path / "state", lambda _: True)
    assert list(copies.PLACE.iterdir()) == []


def test_a_copy_that_a_sandbox_has_mounted_stays(hidden: Path) -> None:
    """It may outlive the process that made it. The control: without a mount it goes."""
    copy = reachable(hidden)
    os.close(copies._held.pop(copy))
    shutil.rmtree(hidden)
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", f"mount --bind {copy} {copy} && echo ok && read x"]
    box = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert box.stdout is not None
    assert box.stdout.readline() == "ok\n"
    assert copies.sweep() == []
    box.communicate("\n")
    assert copies.sweep() == [copy]


def test_what_a_killed_process_left_half_made_goes(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = reachable(hidden)
    half = copy.with_name(f"{copy.name}.new-abc")
    half.mkdir()
    copies.sweep()
    assert half.exists(), "it may be under way"
    monkeypatch.setattr(copies, "LEFT_S", -1.0)
    copies.sweep()
    assert (half.exists(), copy.exists()) == (False, True)


def test_a_directory_that_several_links_lead_to_has_one_copy_and_a_link_opens_nothing(
    hidden: Path, tmp_path: Path
) -> None:
    links = [tmp_path / "one", tmp_path / "two"]
    for link in links:
        link.symlink_to(hidden)
    assert {reachable(each) for each in (*links, hidden)} == {reachable(hidden)}
    opened = Path("/var/tmp") / f"prorl-test-{tmp_path.name}"
    opened.symlink_to(hidden)
    try:
        assert not is_open(opened), "nobody may enter what it leads to"
    finally:
        opened.unlink()
