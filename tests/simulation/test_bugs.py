"""Bugs that were once there are found again when they are put back, each within a few histories."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.simulation import putback
from tests.simulation.options import Options
from tests.simulation.replay import play
from tests.simulation.server import Server

# Full batches stop what they do not need, as soon as its jobs are claimed.
EARLY_CANCELS: dict[str, Any] = {
    "batches": 3, "groups": 10, "n": 8, "slots": 2, "workers": 2, "longest_s": 0.005, "shuffle_all": True,
    "kinds": frozenset({"dapo"}), "surplus": "cancel",
}  # fmt: skip
# At each end of many small batches, the draw withdraws groups whose last samples are being judged.
RACING_VERDICTS: dict[str, Any] = {
    "batches": 12, "groups": 4, "n": 2, "slots": 4, "longest_s": 0.002, "apis": 2,
    "kinds": frozenset({"dapo"}), "surplus": "ordered",
}  # fmt: skip
FOREIGN_KEYS: dict[str, Any] = {
    "groups": 4, "n": 2, "longest_s": 0.05, "faults_s": 0.3, "kinds": frozenset({"foreign_key"}),
}  # fmt: skip

FAULTS: dict[str, Any] = {"n": 4, "slots": 2, "longest_s": 0.4, "faults_s": 3.0, "apis": 2}
SILENT: dict[str, Any] = {**FAULTS, "batches": 6, "kinds": frozenset({"silent"})}
ROLES: dict[str, Any] = {**FAULTS, "kinds": frozenset({"hard_role"})}
CLOCKS: dict[str, Any] = {**FAULTS, "kinds": frozenset({"clock_step", "kill_worker"})}
SET_BACK: dict[str, Any] = {**FAULTS, "kinds": frozenset({"clock_step"})}
LOST_TAILS: dict[str, Any] = {**FAULTS, "faults_s": 6.0, "kinds": frozenset({"lost_tail"}), "reads_again": False}


@pytest.mark.parametrize(
    ("bug", "options", "finding"),
    [
        (putback.slot_leaked_by_an_early_cancel, EARLY_CANCELS, "a worker repaired itself"),
        (putback.verdict_from_a_stale_read, RACING_VERDICTS, "step oracle"),
        (putback.reads_that_wait_without_end, SILENT, "the trainer's batches did not close"),
        (putback.workers_ended_by_a_role, ROLES, "a process failed"),
        (putback.clock_believed_without_limit, CLOCKS, "the trainer's batches did not close"),
        (putback.time_that_goes_back, SET_BACK, "step oracle"),
        (putback.doubles_that_stay, LOST_TAILS, "something is left after the last ack"),
        (putback.intake_stopped_by_a_name, FOREIGN_KEYS, "an error was logged"),
        (putback.intake_stopped_by_a_key, FOREIGN_KEYS, "the trainer's batches did not close"),
    ],
    ids=[
        "slot leaked",
        "stale verdict",
        "no deadline",
        "role",
        "clock",
        "set back",
        "double",
        "foreign name",
        "foreign key",
    ],
)
def test_a_bug_that_is_put_back_is_found(
    server: Server, bug: Callable[[], AbstractContextManager[None]], options: dict[str, Any], finding: str
) -> None:
    """In a history that is clean without it."""
    found: set[str] = set()
    for seed in range(1, 21):
        with bug():
            now = {each.what for each in play(server, Options(seed=seed, **options)).findings}
        found |= now
        if finding in now and not play(server, Options(seed=seed, **options)).findings:
            return
    pytest.fail(f"20 histories did not find it; they found {found}")
