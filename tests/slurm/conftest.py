"""A service of a test's own, made of real processes; stand-ins for Slurm's commands."""

import json
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import World

STAND_IN = Path(__file__).parent / "fake" / "command.py"


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = World(Path(name))
        try:
            yield world
        finally:
            world.stop()


class Fake:
    """Slurm's commands, played."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def answers(self, command: str, text: str = "", code: int = 0) -> None:
        (self.place / command).write_text(f"{code}\n{text}")

    @property
    def calls(self) -> list[dict[str, Any]]:
        path = self.place / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def argvs(self, command: str) -> list[list[str]]:
        return [call["argv"][1:] for call in self.calls if call["argv"][0] == command]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    programs, place = tmp_path / "bin", tmp_path / "fake"
    programs.mkdir()
    place.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sinfo"):
        shutil.copy(STAND_IN, programs / name)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_SLURM", str(place))
    fake = Fake(place)
    fake.answers("sbatch", "17\n")
    return fake
