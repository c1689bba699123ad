"""A node is shut by its base image alone: real Apptainer, an image that is none, and a base image that is empty."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.rules import node_guard
from sandbox.errors import SandboxError
from sandbox.isolators.kinds import make_provider
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import SandboxProvider, SandboxSpec
from tests.sandbox.conftest import NODE, TOOLS_DIR, require_apptainer
from workers.inference.waits import Waits
from workers.node.starts import NodeGuard, WatchedProvider

pytestmark = pytest.mark.anyio
OWNER = "job:1"


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the user of the sandboxes can read: tools of their own, whose base image can be exchanged, and images."""
    require_apptainer()
    with tempfile.TemporaryDirectory(prefix="prorl-guard-", dir="/var/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "tools" / "images").mkdir(parents=True)
        (root / "empty" / "usr").mkdir(parents=True)
        (root / "bad.sif").write_bytes(b"no image")
        for tool in TOOLS_DIR.iterdir():
            if tool.name != "images":
                (root / "tools" / tool.name).symlink_to(tool)
        (root / "tools" / "images" / "base").symlink_to(TOOLS_DIR / "images" / "base")
        yield root


@pytest.fixture
async def provider(anyio_backend: str, place: Path) -> AsyncIterator[SandboxProvider]:
    state_dir = place / "state"
    made = make_provider("apptainer", node=NODE, state_dir=state_dir, python_dir=None, tools_dir=place / "tools")
    yield made
    await sweep(state_dir, lambda owner: False)
    await made.aclose()


async def failures(provider: SandboxProvider, guard: NodeGuard, image: Path) -> list[str]:
    """What the guard says to each of five starts of an image that is none."""
    said = []
    for _ in range(5):
        with pytest.raises(SandboxError):
            await provider.create(SandboxSpec(owner=OWNER, image=str(image)))
        said.append(await guard.failed(provider, OWNER))
    return said


async def test_images_that_do_not_start_shut_no_node_whose_base_image_does(
    provider: SandboxProvider, place: Path
) -> None:
    guard = NodeGuard(NODE, Waits())
    assert await failures(provider, guard, place / "bad.sif") == [""] * 5
    assert not guard.shut


async def test_a_node_whose_base_image_does_not_start_either_is_shut_and_says_why(
    provider: SandboxProvider, place: Path
) -> None:
    base = place / "tools" / "images" / "base"
    base.unlink()
    base.symlink_to(place / "empty")
    waits = Waits()
    guard = NodeGuard(NODE, waits)
    *_, said = await failures(provider, guard, place / "bad.sif")
    assert guard.shut
    assert said.startswith(f"node {NODE} starts no sandbox: SandboxStartFailed: ")
    assert "/bin/sh" in said


@pytest.mark.parametrize("begins", ["with a job that starts", "with a job of an image that is none"])
async def test_a_node_that_was_shut_takes_one_job_after_its_rest_and_all_when_that_shows_it_works(
    provider: SandboxProvider, place: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    monkeypatch.setattr(node_guard, "BACK_OFF_S", 0.0)
    base = place / "tools" / "images" / "base"
    whole = base.readlink()
    base.unlink()
    base.symlink_to(place / "empty")
    waits = Waits()
    guard = NodeGuard(NODE, waits)
    await failures(provider, guard, place / "bad.sif")
    assert (guard.shut, guard.takes(8, 0), guard.takes(8, 1)) == (True, 1, 0)
    base.unlink()
    base.symlink_to(whole)
    if begins == "with a job that starts":
        breakers: Any = None  # of images: it names none
        box = await WatchedProvider(provider, breakers, guard).create(SandboxSpec(owner=OWNER))
        await box.close()
    else:
        with pytest.raises(SandboxError):
            await provider.create(SandboxSpec(owner=OWNER, image=str(place / "bad.sif")))
        assert await guard.failed(provider, OWNER) == ""
    assert (guard.shut, guard.takes(8, 0), waits.text) == (False, 8, "")
