"""One seed is one history, to the byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.options import DEFAULT, Options, derive
from tests.simulation.replay import play
from tests.simulation.server import Server

ROOT = Path(__file__).parent.parent.parent


def test_twenty_jobs_without_faults_end_and_leave_nothing(server: Server) -> None:
    outcome = play(server, Options(seed="calm"))
    assert (outcome.jobs, outcome.findings) == (20, [])


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_seed_played_twice_is_the_same_to_the_byte(server: Server, seed: int) -> None:
    first, again = (play(server, derive(seed)) for _ in range(2))
    assert first.digest == again.digest
    assert first.calls > 100


def test_a_seed_is_the_same_history_in_another_process_with_other_hashes(server: Server) -> None:
    here = [f"{seed} {play(server, derive(seed, DEFAULT)).digest}" for seed in (1, 3)]
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seeds", "1,3", "--jobs", "1", "--digest"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert there.stdout.split("\n")[:2] == here, there.stderr[-2000:]


def test_two_seeds_are_two_histories(server: Server) -> None:
    assert play(server, derive(1)).digest != play(server, derive(2)).digest
