"""A confined program of ours finds its interpreter and its modules wherever they lie, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.isolators.confine import confined

HELLO = "import msgspec, itsown; print(itsown.WORD)"


def ran(argv: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(place), "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False, timeout=60)


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_an_environment_may_be_a_link_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: int
) -> None:
    """On a cluster the project is in a home directory and what pip installs on another disk."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "itsown.py").write_text("WORD = 'found'")
    prefix = Path(sys.prefix)
    for hop in range(hops):
        link = (project if hop == hops - 1 else tmp_path) / f"venv{hop}"
        link.symlink_to(prefix)
        prefix = link
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.syspath_prepend(str(project))
    done = ran(confined([str(prefix / "bin" / "python"), "-c", HELLO], ()), project)
    assert (done.stdout, done.stderr) == ("found\n", "")


def test_of_a_directory_that_holds_other_things_only_modules_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("itsown.py", "package/__init__.py", "package/rows.json", "answers.jsonl", ".state/redis", "data/rows"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = ran(confined(["/bin/ls", "-A", str(tmp_path), str(tmp_path / "package")], ()), tmp_path)
    assert done.stdout.split() == [
        f"{tmp_path}:",
        "itsown.py",
        "package",
        f"{tmp_path}/package:",
        "__init__.py",
        "rows.json",
    ]


def test_nothing_else_is_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token")
    done = ran(confined([sys.executable, "-c", f"open({str(tmp_path / 'secret')!r})"], ()), tmp_path)
    assert "FileNotFoundError" in done.stderr
