"""Real sandboxes of each real kind; every test ends with nothing left behind."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.protocol import Limits, Sandbox, SandboxProvider, SandboxSpec
from sandbox.providers import make_provider
from sandbox.reaper import sweep

NODE = "node-1"
TOOLS_DIR = Path(os.environ.get("PRORL_SANDBOX_TOOLS", Path(__file__).parents[2] / ".state"))
PYTHON_DIR = Path(os.environ.get("PRORL_SANDBOX_PYTHON", TOOLS_DIR / "sandbox-python"))
ISOLATED = ("apptainer", "bubblewrap")  # kinds that promise isolation
Create = Callable[..., Awaitable[Sandbox]]

logging.getLogger("sandbox.local").setLevel(logging.ERROR)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def python_dir() -> Path | None:
    return PYTHON_DIR if (PYTHON_DIR / "IPython").is_dir() else None


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Its path is too long for a socket's address in it, as a shared file system's often is."""
    return tmp_path / ("long" * 20)


@pytest.fixture(params=[*ISOLATED, "local"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apptainer":
        require_apptainer()
    return str(request.param)


def require_apptainer() -> None:
    """Skips where it is not installed. In CI only if the package archive did not deliver it, which CI then says."""
    reason = TOOLS_DIR / "apptainer-missing"
    there = (TOOLS_DIR / "apptainer").exists() and (TOOLS_DIR / "images" / "base").exists()
    if not there and (reason.exists() or not os.environ.get("CI")):
        pytest.skip(reason.read_text().strip() if reason.exists() else "no Apptainer: run `make sandbox-tools`")


@pytest.fixture
async def provider(
    anyio_backend: str, kind: str, state_dir: Path, python_dir: Path | None
) -> AsyncIterator[SandboxProvider]:
    try:
        made = make_provider(kind, node=NODE, state_dir=state_dir, python_dir=python_dir, tools_dir=TOOLS_DIR)
    except SandboxUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield made
    await sweep(state_dir, lambda owner: False)
    await made.aclose()
    root = state_dir / "sandboxes"
    assert not root.exists() or not list(root.iterdir())


@pytest.fixture
def create(provider: SandboxProvider) -> Create:
    async def make(owner: str = "job:1", *, limits: Limits | None = None, **options: Any) -> Sandbox:
        return await provider.create(SandboxSpec(owner=owner, limits=limits or Limits(), **options))

    return make


@pytest.fixture
async def sandbox(create: Create) -> Sandbox:
    return await create()
