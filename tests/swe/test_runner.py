"""How each test of a file ended, told as data sets that do not use pytest name and count it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from workers.handlers.swe import judge
from workers.handlers.swe.canaries import canaries
from workers.handlers.swe.grading import Judged, forgery, log_of, scored
from workers.handlers.swe.rows import Hidden, SweTask

pytestmark = pytest.mark.anyio
FUNCTIONS = """
class Skipped(Exception): pass
class XFail(Exception): pass
def test_right(): assert True
def test_wrong(): assert False
def test_broken(): raise KeyError
def test_skipped(): raise Skipped
def test_expected(): raise XFail
def test_slow(): raise KeyError
test_slow._slow = True
def helper(): raise KeyError
"""


async def judged(tmp_path: Path, text: str) -> tuple[Judged, list[Any]]:
    """What the judge says of a file of test functions, with canaries in it."""
    path = tmp_path / "made_tests_of_functions.py"
    path.write_text(text)
    planted = canaries("functions", [(path.name, text)])
    given = {
        "nonce": "n", "python": sys.executable, "cwd": str(tmp_path), "tests": [path.name], "style": "functions",
        "canaries": [(canary.path, canary.text) for canary in planted], "timeout_s": 60,
        "runner": f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        + Path(judge.__file__).with_name("runner.py").read_text(),
    }  # fmt: skip
    command = (sys.executable, "-I", judge.__file__)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate(json.dumps(given).encode() + b"\n")
    return Judged(**json.loads(said)), planted


async def test_functions_end_as_sympys_runner_says(tmp_path: Path) -> None:
    found, planted = await judged(tmp_path, FUNCTIONS)
    assert forgery(found, planted) is None
    ours = {canary.name for canary in planted}
    told = {shown: status for name, status, shown in found.statuses if name not in ours}
    assert told == {
        "test_right": "PASSED", "test_wrong": "FAILED", "test_broken": "ERROR", "test_skipped": "SKIPPED",
        "test_expected": "XFAIL", "test_slow": "SKIPPED",
    }  # fmt: skip
    task = SweTask(instance_id="sympy__sympy-1", repo="sympy/sympy")
    for wanted, reward in ((["test_right"], 1.0), (["test_right", "test_wrong"], 0.0)):
        score = scored(task, Hidden(fail_to_pass=wanted), "parse_log_sympy", log_of("functions", found, planted))
        assert score.reward == reward


async def test_a_file_that_ends_the_run_is_seen(tmp_path: Path) -> None:
    found, planted = await judged(tmp_path, "def test_right(): assert True\nraise SystemExit(1)\n")
    assert "ended before its time" in (forgery(found, planted) or "")
