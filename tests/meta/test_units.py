"""Units of systemd: systemd reads them, and each starts a program that takes its options and variables."""

import asyncio
import configparser
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prorl_mq.process.redis_server import answering
from prorl_mq.store.server.connection import RedisSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ops" / "service"
UNITS = sorted(FOLDER.glob("*.service"))


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return parser


def argv_of(unit: Path, state: Path) -> list[str]:
    """What the unit runs, for a worker of RUN, as its user's systemd would expand it."""
    line = (
        read(unit)["Service"]["ExecStart"].replace("%S", str(state)).replace("%i", "run").replace("$REDIS_OPTIONS", "")
    )
    env, *argv = shlex.split(line)
    assert env == "/usr/bin/env"
    return argv


def faults(folder: Path) -> str:
    """What systemd says against the units of a folder; it knows them by no other place."""
    names = [str(path) for path in sorted(folder.glob("*.service")) if "@" not in path.name]
    argv = ["systemd-analyze", "verify", "--man=no", *names, str(folder / "prorl-worker@run.service")]
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60).stderr


def of_these(said: str) -> list[str]:
    """Faults of our units, not of the machine's own."""
    return [line for line in said.splitlines() if "prorl" in line]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: install the package systemd")
def test_systemd_has_nothing_against_them(tmp_path: Path) -> None:
    units = Path(shutil.copytree(FOLDER, tmp_path / "units"))
    assert of_these(faults(units)) == []
    broken = units / "prorl-api.service"
    broken.write_text(broken.read_text().replace("UMask", "UMaks"))
    assert len(of_these(faults(units))) == 1, "the control: a misspelt word is found"


def test_each_is_part_of_the_target_and_keeps_its_data_to_itself() -> None:
    wanted = read(FOLDER / "prorl.target")["Unit"]["Wants"].split()
    assert {name.replace("@init", "@").replace("@run", "@").replace("@eval", "@") for name in wanted} == {
        unit.name for unit in UNITS
    }
    for unit in UNITS:
        about = read(unit)
        assert about["Unit"]["PartOf"] == "prorl.target"
        assert about["Service"]["UMask"] == "0077"
        assert about["Service"]["StateDirectory"] == "prorl"


@pytest.mark.process
def test_a_program_takes_the_options_of_its_unit(tmp_path: Path) -> None:
    """`--help` behind them is answered only where each of them is known."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    words = {argv[0]: argv[1:] for argv in (argv_of(unit, tmp_path) for unit in UNITS)}
    assert words.pop("python3")[:2] == ["-m", "prorl_mq.process.redis_server"]
    assert {name for name in words if name not in scripts} == set()
    assert [name for name, more in words.items() if more] == ["prorl-worker"]
    argv = [sys.executable, "-m", "workers", *words["prorl-worker"], "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_variables_are_those_of_the_configuration_page() -> None:
    known = (ROOT / "docs/reference/configuration.md").read_text()
    lines = (FOLDER / "prorl.env").read_text().splitlines()
    named = {line.lstrip("#").partition("=")[0] for line in lines if line.lstrip("#").startswith("PRORL_")}
    named |= {word.partition("=")[0] for unit in UNITS for word in read(unit)["Service"].get("Environment", "").split()}
    assert {"PRORL_REDIS", "PRORL_STATE", "PRORL_SLOTS"} <= named
    assert {name for name in named if f"`{name}`" not in known} == set()


@pytest.mark.anyio
@pytest.mark.process
async def test_the_server_of_the_unit_answers_and_a_second_one_is_refused(tmp_path: Path) -> None:
    """Two servers on one append-only file would destroy it: the lock outlives the program that took it."""
    _, *words = argv_of(FOLDER / "prorl-redis.service", tmp_path)
    server = subprocess.Popen([sys.executable, *words], cwd=ROOT)  # noqa: ASYNC220 - it does not wait
    directory = tmp_path / "prorl/redis"
    settings = RedisSettings(url=f"unix://{directory}/redis.sock", namespace="prorl")
    try:
        await answering(settings, server, directory)
        again = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stderr=subprocess.PIPE)
        _, said = await again.communicate()
        assert again.returncode == 1
        assert b"another server uses" in said
    finally:
        server.terminate()
        assert server.wait(20) == 0
