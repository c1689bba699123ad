"""What root binds into a sandbox is read by a user without rights, wherever the project lies."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.host import reachable as module
from sandbox.host.reachable import is_open, reachable


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory below one that only its owner may enter, and a place for copies that anybody may."""
    monkeypatch.setattr(module, "COPIES", tmp_path / "copies")
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
    assert copy.parent == module.COPIES
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
