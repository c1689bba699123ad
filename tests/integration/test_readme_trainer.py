"""The trainer of the README runs as printed there, against a service that `prorl-mq up` has started."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.agent.chat import call
from tests.cli.conftest import ROOT, Up, start_backend, state, tokenizer_dir, up

__all__ = ["start_backend", "state", "tokenizer_dir", "up"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FINISH = call("finish", '{"message": "7"}')


def example() -> str:
    [found] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(found)


def test_the_readme_trainer_is_short() -> None:
    assert len(example().splitlines()) <= 28


def test_the_readme_trainer_gets_every_sample_with_its_tokens_and_acknowledges_it(
    up: Callable[..., Up], start_backend: Callable[..., str], tmp_path: Path
) -> None:
    """It finds address and token by itself: the service of a test takes a free port."""
    backend = start_backend("--text", FINISH)
    service = up("--sandbox", "bubblewrap", "--backend", backend)
    service.wait_for("Ctrl-C drains")
    script = tmp_path / "trainer.py"
    script.write_text(example())

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, (done.stderr, service.said)
    lines = done.stdout.splitlines()
    assert len(lines) == len(set(lines)) == 16, done.stdout
    for line in lines:
        assert re.fullmatch(r"step-1-[0-3] [0-3] completed [01]\.\d+ [1-9]\d* tokens", line), line
    run = httpx.get(f"{service.url}/v1/runs/my-run", headers=service.headers, trust_env=False).json()
    assert (run["in_flight"], run["unacked_groups"]) == (0, 0)
