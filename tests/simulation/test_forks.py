"""Histories whose jobs are forked while their workers, services and groups come and go."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from prorl_mq.store import scripts
from tests.simulation.checks import checks
from tests.simulation.faults import Fault
from tests.simulation.mutants import applied, taken_out
from tests.simulation.options import Options
from tests.simulation.replay import play, report
from tests.simulation.server import Server

TREES: Final[Mapping[str, Any]] = {
    "kinds": frozenset({
        "fork_job", "kill_worker", "kill_api", "freeze_worker", "restart", "lost_reply", "again", "cancel_group",
        "cancel_job", "pause_job", "raise",
    }),
    "workers": 2, "n": 2, "faults_s": 2.0, "longest_s": 0.3, "max_deaths": 2,
}  # fmt: skip
# Many forks, some by the name of a group that there is; calls that arrive twice, or whose answers do not.
NAMES: Final[Mapping[str, Any]] = {
    "kinds": frozenset({"again", "lost_reply"}), "n": 2, "longest_s": 0.3, "faults_s": 3.0, "ack_at_once": False,
}  # fmt: skip
FORKS: Final = [Fault(0.2 + place / 10, "fork_job", place, 0.1) for place in range(12)]
SEEDS: Final = 12


@pytest.mark.timeout(300)
def test_no_schedule_breaks_a_fork(server: Server) -> None:
    met: Counter[str] = Counter()
    for seed in range(4):
        for kind, faults in ((TREES, None), (NAMES, FORKS)):
            outcome = play(server, Options(seed=f"forks {seed}", **kind), faults)
            assert not outcome.findings, report(outcome)
            met += outcome.counts
    assert {"forked", "fork: forked", "fork: conflict", "fork: already"} <= set(met), sorted(met)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", ["fork: digest", "fork: call('EXISTS', KEYS[9]) == 1"], ids=["repeat", "name"])
def test_a_fork_without_one_of_its_checks_is_found(server: Server, check: str) -> None:
    """In a history that is clean with it."""
    [wanted] = [each for each in checks() if each.name == check]
    for seed in range(SEEDS):
        options = Options(seed=f"forks {seed}", **NAMES)
        with taken_out(wanted):
            missed = play(server, options, FORKS).findings
        if missed:
            assert "step oracle" in {each.what for each in missed}
            assert play(server, options, FORKS).findings == []
            return
    pytest.fail(f"{SEEDS} histories did not find it")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "right", "wrong", "finding"),
    [
        ("settle", "call('UNLINK', KEYS[8], KEYS[9], KEYS[#KEYS - 2])", "call('UNLINK', KEYS[8], KEYS[9])",
         "turns of a fork are left behind its record"),
        ("fork", "call('HSET', KEYS[12], 'turns', raw(A.turns), ", "call('HSET', KEYS[12], ",
         "a forked job has lost its turns"),
    ],
    ids=["left", "lost"],
)  # fmt: skip
def test_a_bug_of_forks_is_found(server: Server, script: str, right: str, wrong: str, finding: str) -> None:
    """In a history that is clean without it."""
    text = scripts.script(script).text
    assert right in text
    for seed in range(SEEDS):
        options = Options(seed=f"forks {seed}", **TREES)
        with applied({script: text.replace(right, wrong)}):
            found = {each.what for each in play(server, options).findings}
        if finding in found:
            assert play(server, options).findings == []
            return
    pytest.fail(f"{SEEDS} histories did not find it")
