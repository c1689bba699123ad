"""Histories in which some workers lack a task family, and are replaced by ones that have it."""

from collections import Counter

import pytest

from tests.simulation.options import Options
from tests.simulation.replay import play, report
from tests.simulation.server import Server

KINDS = frozenset({"families", "kill_worker", "freeze_worker", "drain", "restart", "lost_reply", "cancel_job"})


@pytest.mark.timeout(300)
def test_no_schedule_loses_a_job_to_a_worker_that_lacks_its_family(server: Server) -> None:
    met: Counter[str] = Counter()
    for seed in range(6):
        options = Options(seed=f"families {seed}", kinds=KINDS, workers=2, n=2, faults_s=2.0, longest_s=0.3)
        outcome = play(server, options)
        assert not outcome.findings, report(outcome)
        met += outcome.counts
    assert {"divert: diverted", "retire_lane: retired"} <= set(met)
