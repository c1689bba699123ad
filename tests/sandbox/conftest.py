"""Real sandboxes of each real kind; every test ends with nothing left behind."""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.isolators.kinds import make_provider
from sandbox.isolators.layers.copying import Copies
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import Sandbox, SandboxLimits, SandboxProvider, SandboxSpec

NODE = "node-1"
TOOLS_DIR = Path(os.environ.get("PRORL_SANDBOX_TOOLS", Path(__file__).parents[2] / ".state")).absolute()
PYTHON_DIR = Path(os.environ.get("PRORL_SANDBOX_PYTHON", TOOLS_DIR / "sandbox-python"))
ISOLATED = ("apptainer", "bubblewrap")  # kinds that promise isolation
KINDS = (*ISOLATED, "local")
WITHOUT_PYTHON = ("apptainer-without-python", "bubblewrap-without-python")  # their image has a shell and little else
EVERYWHERE = (*KINDS, "bubblewrap-without-python")
PROGRAMS = (
    "bash", "cat", "chmod", "cut", "dd", "df", "du", "echo", "env", "false", "grep", "head", "id", "kill", "ln", "ls",
    "mkdir", "mkfifo", "printf", "pwd", "readlink", "rm", "sed", "seq", "setsid", "sh", "sleep", "stat", "stty", "tail",
    "touch", "tr", "true", "wc",
)  # fmt: skip
Create = Callable[..., Awaitable[Sandbox]]

logging.getLogger("sandbox.isolators.local").setLevel(logging.ERROR)


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


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("apptainer"):
        require_apptainer()
    return str(request.param)


def require_apptainer() -> None:
    """Skips where it is not installed. In CI only if the package archive did not deliver it, which CI then says."""
    reason = TOOLS_DIR / "apptainer-missing"
    there = (TOOLS_DIR / "apptainer").exists() and (TOOLS_DIR / "images" / "base").exists()
    if not there and (reason.exists() or not os.environ.get("CI")):
        pytest.skip(reason.read_text().strip() if reason.exists() else "no Apptainer: run `make sandbox-tools`")


def copy_program(program: str, root: Path) -> None:
    """A program of this machine with the libraries that it needs, to the same places below another root."""
    found = shutil.which(program, path="/usr/bin:/bin")
    assert found is not None, program
    listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    for source, target in [(found, f"/usr/bin/{program}"), *((library, library) for library in libraries)]:
        place = root / target[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(Path(source).resolve(), place)


@pytest.fixture(scope="session")
def image_without_python() -> Iterator[Path]:
    """The root directory of an image, where a sandbox of root's worker, which is not root, can read it."""
    with tempfile.TemporaryDirectory(prefix="prorl-image-", dir="/var/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        for directory in ("tmp", "var/tmp", "usr/bin"):
            (root / directory).mkdir(parents=True)
        for directory in ("bin", "lib", "lib64"):
            (root / "usr" / directory).mkdir(exist_ok=True)
            (root / directory).symlink_to(f"usr/{directory}")
        for program in PROGRAMS:
            copy_program(program, root)
        yield root


@pytest.fixture
def usual_image(kind: str, request: pytest.FixtureRequest) -> str | None:
    """None: the provider's own."""
    return str(request.getfixturevalue("image_without_python")) if kind in WITHOUT_PYTHON else None


@pytest.fixture
async def provider(
    anyio_backend: str, kind: str, state_dir: Path, python_dir: Path | None
) -> AsyncIterator[SandboxProvider]:
    try:
        made = make_provider(
            kind.partition("-")[0], node=NODE, state_dir=state_dir, python_dir=python_dir, tools_dir=TOOLS_DIR
        )
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
def create(provider: SandboxProvider, usual_image: str | None) -> Create:
    async def make(owner: str = "job:1", *, limits: SandboxLimits | None = None, **options: Any) -> Sandbox:
        return await provider.create(
            SandboxSpec(owner=owner, **{"limits": limits or SandboxLimits(), "image": usual_image, **options})
        )

    return make


@pytest.fixture
async def sandbox(create: Create) -> Sandbox:
    return await create()


@pytest.fixture
async def copies(anyio_backend: str) -> AsyncIterator[Copies]:
    made = Copies()
    yield made
    await made.aclose()
