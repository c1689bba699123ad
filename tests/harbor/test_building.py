"""Images from Dockerfiles, built by a real Apptainer without root."""

import json
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.conftest import TOOLS_DIR
from workers.handlers.harbor.building import BuildFailed, build

pytestmark = pytest.mark.anyio
FILE = """
FROM debian:12
ARG NAME=made
WORKDIR /app
COPY --chmod=700 run.sh data/ ./
RUN test "$NAME" = made && id -u >"$NAME" && pwd >>"$NAME"
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of images in one that the user who builds can pass: pytest's own are closed to it."""
    base = TOOLS_DIR / "images" / "base.sif"
    if not base.is_file() or not (TOOLS_DIR / "apptainer").exists():
        pytest.skip("there is no Apptainer, or no base image: run `make sandbox-tools`")
    with tempfile.TemporaryDirectory(prefix="prorl-images-") as name:
        made = Path(name)
        made.chmod(0o755)
        (made / "images.json").write_text(json.dumps({"debian:*": str(base.resolve())}))
        yield made


def context(tmp_path: Path, text: str) -> Path:
    made = tmp_path / "environment"
    (made / "data").mkdir(parents=True)
    (made / "data" / "inner").write_text("x")
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "Dockerfile").write_text(text)
    return made


async def test_an_image_is_built_once(tmp_path: Path, place: Path) -> None:
    environment = context(tmp_path, FILE)
    image, new = await build(environment, place, TOOLS_DIR, timeout_s=120)
    assert new
    assert (image / "app/made").read_text() == "0\n/app\n"
    assert (image / "app/inner").read_text() == "x"
    assert stat.S_IMODE((image / "app/run.sh").stat().st_mode) == 0o700
    assert not (image / ".prorl-context").exists()
    assert await build(environment, place, TOOLS_DIR, timeout_s=120) == (image, False)


async def test_a_command_that_fails_is_told_and_leaves_nothing(tmp_path: Path, place: Path) -> None:
    environment = context(tmp_path, "FROM debian:12\nRUN echo so it ends >&2 && false\n")
    with pytest.raises(BuildFailed, match="so it ends"):
        await build(environment, place, TOOLS_DIR, timeout_s=120)
    assert [path.name for path in place.glob("*")] == ["images.json"]  # noqa: ASYNC240
