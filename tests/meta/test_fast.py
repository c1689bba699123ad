"""`make test-fast` runs what needs no process, and nothing else."""

import subprocess
import sys
from pathlib import Path

from tests.support.fast import REFUSAL

ROOT = Path(__file__).parent.parent.parent
PLANTED = """
import subprocess, pytest

@pytest.fixture
def server():
    return subprocess.run(["true"])

def test_without(): pass
def test_with_a_server(server): pass
"""


def test_a_fast_test_cannot_start_a_process(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "tests.support.fast", str(tmp_path)]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert REFUSAL in done.stdout
    assert "1 passed, 1 error" in done.stdout
