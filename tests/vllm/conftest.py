"""One vLLM with the tiny model for all tests here, and a Transformers model beside it.

PRORL_VLLM_URL names one that runs already, with the settings of ops/vllm-serve.sh and the same model; else the tests
start one from what ops/vllm-cpu.sh left in the state directory (PRORL_STATE_DIR, default .state), and stop it again.
Theirs has a generation config with penalties, as models come with.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.vllm_server import serving
from tests.vllm.scoring import Scorer
from tests.vllm.server import share_one_server, state_directory
from workers.inference.clients import InferenceClients
from workers.inference.probe import Probed, probe

HERE = Path(__file__).parent
LORA = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "3")
# The server's defaults for whatever a request leaves out: every test here fails if one of ours does.
DISTORTING = {
    "eos_token_id": 2, "pad_token_id": 0, "do_sample": True, "repetition_penalty": 1.3, "temperature": 0.6,
    "top_p": 0.8, "top_k": 20, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.5,
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_one_server(items, HERE)


@pytest.fixture(scope="session")
def state_dir() -> Path:
    return state_directory()


@pytest.fixture(scope="session")
def model(state_dir: Path) -> Path:
    """What the server serves at first."""
    return state_dir / "models/tiny"


@pytest.fixture(scope="session")
def vllm_address(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("PRORL_VLLM_URL"):
        yield url
        return
    state = tmp_path_factory.mktemp("vllm")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    (state / "generation_config.json").write_text(json.dumps(DISTORTING))
    with serving(model, state / "log", "--generation-config", str(state), *LORA) as address:
        yield address
    monkeypatch.undo()


@pytest.fixture(scope="session")
def scorer(state_dir: Path) -> Iterator[Scorer]:
    made = Scorer(state_dir / "vllm/bin/python")
    yield made
    made.close()


@pytest.fixture(scope="session")
def other_weights(scorer: Scorer, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape, as a trainer's next step leaves it in a directory."""
    return scorer.vary(model, tmp_path_factory.mktemp("weights") / "next", seed=1)


@pytest.fixture
async def clients() -> AsyncIterator[InferenceClients]:
    async with InferenceClients(connect_s=5, answer_s=120) as made:
        yield made


@pytest.fixture
async def vllm(clients: InferenceClients, vllm_address: str) -> Probed:
    return await probe(clients, vllm_address)
