"""How each test of a file ended, told as data sets that do not use pytest name and count it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from workers.handler import NodeCrowded
from workers.handlers.clocks import EvalClock
from workers.handlers.swe import judge, trial
from workers.handlers.swe.canaries import canaries
from workers.handlers.swe.evaluation import _Trials
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


def run_of(file: str) -> str:
    """The runner's order for a file of test functions."""
    return json.dumps({"style": "functions", "options": [], "tests": [file], "site": "/nowhere"})


async def judged(tmp_path: Path, text: str) -> tuple[Judged, list[Any]]:
    """What the judge says of a file of test functions, with canaries in it."""
    path = tmp_path / "made_tests_of_functions.py"
    path.write_text(text)
    planted = canaries("functions", [(path.name, text)])
    given = {
        "nonce": "n", "python": sys.executable, "cwd": str(tmp_path), "run": run_of(path.name), "environment": {},
        "canaries": [(canary.path, canary.text) for canary in planted], "cpu_s": 1e6, "wall_s": 240,
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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["x F", "y ok"], ["x ok", "z ok"]),  # the last of a name counts
        (["x ok", "y ok"], ["x F", "z ok"]),
        (["x ok", "y ok"], ["z ok", "x F"]),  # but a file's last test is not read
        (["x F", "y ok"], ["z ok", "x ok"]),
        (["y ok", "x ok"], ["z ok", "x F"]),  # of neither file
        (["y ok", "x F"], ["x ok", "z ok"]),
    ],
)
def test_a_name_in_two_files_of_sympys_is_read_as_in_its_own_log(first: list[str], second: list[str]) -> None:
    """The control is SWE-bench's parser on what SymPy's runner prints."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    files = {"a.py": first, "b.py": second}
    log = "".join(
        f"\nsympy/{path}[{len(lines)}]\n" + "\n".join(f"test_{each}" for each in lines) + " " * 40 + "[OK]\n"
        for path, lines in files.items()
    )
    told = [line.split() for lines in files.values() for line in lines]
    names = [f"{path}::test_{line.split()[0]}" for path, lines in files.items() for line in lines]
    means = {"ok": "PASSED", "F": "FAILED"}
    statuses = [(name, means[how], f"test_{x}") for name, (x, how) in zip(names, told, strict=True)]
    found = Judged(nonce="", statuses=statuses, ended=True, forged=False, timed_out=False, exit_code=1, printed="")
    parse = PARSER_REGISTRY["parse_log_sympy"]
    ours, theirs = (parse(text, None) for text in (log_of("functions", found, []), log))
    assert {name: ours[name] for name in theirs} == theirs
    assert ours.keys() == {f"test_{x}" for x, _ in told}, "a last test alone is read, too"


async def test_functions_run_in_the_order_of_their_file(tmp_path: Path) -> None:
    text = (
        "import functools\ndef wrap(f):\n    @functools.wraps(f)\n    def g(): f()\n    return g\n"
        "def test_c(): pass\n@wrap\ndef test_b(): pass\ndef test_a(): pass\n"
    )
    found, planted = await judged(tmp_path, text)
    ours = {canary.name for canary in planted}
    assert [shown for name, _, shown in found.statuses if name not in ours] == ["test_c", "test_b", "test_a"]


async def test_a_file_that_ends_the_run_is_seen(tmp_path: Path) -> None:
    found, planted = await judged(tmp_path, "def test_right(): assert True\nraise SystemExit(1)\n")
    assert "ended before its time" in (forgery(found, planted) or "")


async def in_sandbox(box: Sandbox, text: str, *, cpu_s: float, wall_s: float) -> Judged:
    """What the judge says of a file of test functions when it runs where nothing else does."""
    await box.write_file("/workspace/made_tests.py", text.encode())
    given = {
        "nonce": "n", "python": "python3", "cwd": "/workspace", "run": run_of("made_tests.py"), "environment": {},
        "canaries": [], "cpu_s": cpu_s, "wall_s": wall_s,
        "runner": "import sys; sys.path.insert(0, '/workspace')\n" + trial._program("runner.py"),
    }  # fmt: skip
    command = ["python3", "-I", "-c", trial._program("judge.py")]
    done = await box.run(command, stdin=json.dumps(given).encode() + b"\n", timeout_s=120.0)
    return Judged(**json.loads(done.stdout))


async def test_tests_end_at_their_cpu_time_or_at_the_wall_and_say_which(provider: SandboxProvider) -> None:
    box = await provider.create(SandboxSpec(owner="test"))
    spin = (
        "def test_spin():\n    import subprocess, sys\n    subprocess.run([sys.executable, '-c', 'while True: pass'])\n"
    )
    try:
        spun = await in_sandbox(box, spin, cpu_s=1.0, wall_s=100.0)
        assert (spun.timed_out, spun.cpu_s >= 1.0, spun.wall_s < 100.0) == (True, True, True)
        slept = await in_sandbox(box, "def test_sleep():\n    __import__('time').sleep(99)\n", cpu_s=50.0, wall_s=2.0)
        assert (slept.timed_out, slept.cpu_s < 2.0, slept.wall_s >= 2.0) == (True, True, True)
        quick = await in_sandbox(box, "def test_quick(): pass\n", cpu_s=50.0, wall_s=100.0)
        assert (quick.timed_out, quick.ended) == (False, True)
    finally:
        await box.close()


def late(**more: float) -> trial.Tested:
    judged = Judged(
        nonce="n", statuses=(), ended=False, forged=False, timed_out=True, exit_code=None, printed="",
        **{"wall_s": 40.0, "cpu_s": 4.0, "starved_s": 30.0, **more},
    )  # fmt: skip
    return trial.Tested(judged, (), ())


@pytest.mark.parametrize(
    ("tested", "repeated", "crowded"),
    [
        (late(), False, True),
        (late(), True, False),
        (late(starved_s=1.0), False, False),
        (late(cpu_s=50.0), False, False),
    ],
    ids=["they waited for a CPU", "for the second time", "they waited for something else", "they used their time"],
)
def test_tests_that_waited_for_a_cpu_are_run_once_more_and_then_count(
    tested: trial.Tested, repeated: bool, crowded: bool
) -> None:
    clock = EvalClock(began=0.0, end=80.0, waited_us=1 << 60, repeated=repeated)
    trials = _Trials(cast("Any", None), SweTask(instance_id="a", repo="a/b"), Hidden(), "", clock)
    trials._had_s = tested.judged.wall_s
    if crowded:
        with pytest.raises(NodeCrowded, match="waited for a CPU for 30 s"):
            trials._in_time(tested)
    else:
        assert trials._in_time(tested) is tested


def test_tests_that_evals_end_cut_short_are_run_again_also_when_they_waited_for_no_cpu() -> None:
    """Another patch's image took the time, or this one's; the patch had less than half of EVAL's."""
    clock = EvalClock(began=0.0, end=80.0, waited_us=1 << 60, repeated=True)
    trials = _Trials(cast("Any", None), SweTask(instance_id="a", repo="a/b"), Hidden(), "", clock)
    trials._had_s = 39.0
    with pytest.raises(NodeCrowded, match="EVAL's time was over when it had run for 39 s"):
        trials._in_time(late(starved_s=1.0, wall_s=39.0))
    used = late(cpu_s=50.0, wall_s=39.0)
    assert trials._in_time(used) is used, "a control: their own CPU time was over"


def test_what_ends_late_ends_within_evals_own_budget() -> None:
    clock = EvalClock(began=0.0, end=8.0, waited_us=None, repeated=False)
    limits = _Trials(cast("Any", None), SweTask(instance_id="a", repo="a/b"), Hidden(), "", clock)._limits(least_s=0.5)
    assert limits.wall_s + 2 * limits.ending_s < 2.0, "EVAL's budget is 10 s, of which 8 s were over long ago"
