"""The wheel alone, in a fresh environment and outside the checkout, is the product that the documents describe."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from prorl_mq.cli.installing.parts import PARTS, FolderCopy

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]


def run(*argv: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    return subprocess.run(list(map(str, argv)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, ROOT, cwd=place)
    assert done.returncode == 0, done.stderr
    [made] = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def program(wheel: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a program of an environment that has the wheel and what it needs, without any extra."""
    venv = wheel.parent / "venv"
    for argv in (
        (sys.executable, "-m", "venv", venv),
        (venv / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel),
    ):
        done = run(*argv, cwd=wheel.parent)
        assert done.returncode == 0, done.stderr
    return lambda name, *words: run(venv / "bin" / name, *words, cwd=wheel.parent)


def test_the_base_install_has_the_command_line(program: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    done = program("prorl-mq", "--help")
    assert done.returncode == 0
    assert "install-tools" in done.stdout


@pytest.mark.parametrize("name", ["prorl-worker", "prorl-api", "prorl-keeper"])
def test_a_program_of_the_service_says_which_extra_it_needs(
    program: Callable[..., "subprocess.CompletedProcess[str]"], name: str
) -> None:
    done = program(name, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{name}: the library ")
    assert done.stderr.endswith(" is not installed: pip install 'prorl-mq[service]'\n")
    assert done.stderr.count("\n") == 1


def test_a_command_that_starts_the_service_says_so_too(
    program: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    done = program("prorl-mq", "up")
    assert done.returncode == 2
    assert done.stderr.endswith(" is not installed: pip install 'prorl-mq[service]'\n")


def test_monitoring_and_examples_come_from_the_wheel(
    program: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    done = program("prorl-mq", "install-tools", "monitoring", "examples", "--state-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "monitoring/grafana-dashboard.json").is_file()
    assert (tmp_path / "monitoring/alerts.yml").read_bytes() == (ROOT / "ops/prometheus/alerts.yml").read_bytes()
    assert (tmp_path / "examples/trainers/verl_agent_loop.yaml").is_file()


def test_installers_of_the_wheel_find_the_programs_that_they_call(wheel: Path) -> None:
    """Those of the folder `ops` whose names stand in one that the wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        there = {name.removeprefix("prorl_mq/shipped/") for name in archive.namelist()}
        texts = {name: archive.read(f"prorl_mq/shipped/{name}").decode() for name in there if name.endswith(".sh")}
    wanted = {f"ops/{part.step.name}" for part in PARTS.values() if not isinstance(part.step, FolderCopy)}
    assert wanted <= there
    calls = {other.name for other in (ROOT / "ops").iterdir() if other.suffix in {".sh", ".py"}}
    called = {f"ops/{name}" for text in texts.values() for name in calls if f'"$ops/{name}"' in text}
    assert called
    assert called <= there
