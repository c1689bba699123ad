"""`make train-demo --quick`, as a user runs it: a real vLLM, real sandboxes, and kills in the middle."""

import json
import subprocess
import sys

import pytest

from bench import report
from examples.train.learner_process import ROOT
from examples.train.trainer import TOLERANCE
from tests.vllm.server import state_directory

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1500), pytest.mark.xdist_group("vllm")]


def test_a_short_training_goes_on_over_kills_on_weights_that_are_really_swapped() -> None:
    state = state_directory()
    argv = [sys.executable, "-m", "bench.train", "--quick", "--state", str(state)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1440, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    [run] = json.loads((report.OUT / "train-quick.json").read_bytes())["runs"]
    assert (run["killed"], run["killed_in"]) == (["run-1", "api", "redis"], 2)
    before, *steps = run["steps"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    for number, step in enumerate(steps, before["version"]):
        assert (step["accepted"], step["reason"]) == (4, "target")
        assert step["sampled_by"][1] <= number, "the backend tells no version before it was announced"
        assert step["version"] == number + 1
        assert step["compared_tokens"] > 0
        assert step["max_difference"] <= TOLERANCE
        assert len(step["held_out"]) == len(before["held_out"]) == 32
    told = [step["sampled_by"][1] for step in steps]
    assert told == sorted(told)
    assert told[0] == before["version"]
    assert told[-1] > told[0], "new weights sampled"
