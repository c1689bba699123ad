"""The example instances with their images, and patches made as an agent would make them."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.handlers.conftest import Stages, provider, stages
from tests.handlers.suite import Kept, Kind
from tests.swe.rows import IMAGES, QUICK, ROWS
from workers.handler import Score
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.images import flat

__all__ = ["IMAGES", "QUICK", "ROWS", "provider", "stages"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The instances' images. CI builds them first."""
    if not (IMAGES / "images.json").exists() and not os.environ.get("CI"):
        pytest.skip("no images of software engineering tasks: run `make swe-images`")
    monkeypatch.setenv("PRORL_SWE_IMAGES", str(IMAGES / "images.json"))
    return IMAGES


@pytest.fixture
def patch_of(tmp_path: Path) -> Callable[..., str]:
    """A patch of an instance's repository: from changes to a copy of it."""

    def make(change: Callable[[Path], None], instance: str = QUICK) -> str:
        copy = tmp_path / "copy"
        shutil.copytree(IMAGES / flat(instance) / "testbed", copy, symlinks=True)
        change(copy)
        git = ["git", "-C", str(copy), "-c", f"safe.directory={copy}"]
        subprocess.run([*git, "add", "-A", "-f"], check=True)
        made = subprocess.run(
            [*git, "diff", "--cached", "--binary", "--no-renames", "HEAD"], check=True, capture_output=True
        )
        shutil.rmtree(copy)
        return made.stdout.decode()

    return make


async def kept(stages: Stages, kind: Kind, instance: str, patch: str, row: dict[str, Any] | None = None) -> Score:
    """The score of a patch, for the table, too."""
    began = time.monotonic()
    score = await stages.score(SoftwareEngineering(), row or ROWS[instance], {"patch": patch})
    stages.keep(Kept("swe", kind, score.reward, time.monotonic() - began))
    return score


__all__ += ["Stages"]
