"""One vLLM with a tiny model that has vision, for all tests here.

They are of `make test-vision`, which puts a torchvision for the processors of vLLM's environment into a directory and
names it in PRORL_VISION; without that none is collected. PRORL_VISION_URL names a server that runs already with the
model of PRORL_VISION_MODEL.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.vllm_server import serving
from tests.vision.school import teach
from tests.vllm.server import ROOT, share_one_server, state_directory
from workers.inference.clients import InferenceClients
from workers.inference.probe import Probed, probe

HERE = Path(__file__).parent
PLACE = "PRORL_VISION"
collect_ignore_glob = [] if os.environ.get(PLACE) else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_one_server(items, HERE)


@pytest.fixture(scope="session")
def state_dir() -> Path:
    return state_directory()


@pytest.fixture(scope="session")
def python_path() -> str:
    """The path for programs of vLLM's environment that need torchvision."""
    return f"{HERE / 'torchvision_on_cpu'}:{Path(os.environ[PLACE]).absolute()}"


@pytest.fixture(scope="session")
def model(state_dir: Path, python_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if named := os.environ.get("PRORL_VISION_MODEL"):
        return Path(named)
    made = tmp_path_factory.mktemp("models") / "vision"
    command = [str(state_dir / "vllm/bin/python"), str(ROOT / "ops/tiny-model.py"), str(made), "--vision"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": python_path}, capture_output=True)
    teach(made, state_dir / "vllm/bin/python", python_path)
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
