"""A script without one of its checks is found, by a history or by a test of its verb."""

from collections.abc import Iterable

import pytest

from tests.simulation.checks import Check, checks
from tests.simulation.found import FOUND
from tests.simulation.mutants import search, taken_out
from tests.simulation.options import derive_storm
from tests.simulation.replay import play
from tests.simulation.server import Server

# Those that fence a job or an entry, and the seeds that have found their removal. `test_bugs.py` has that of a verdict.
SOON = (
    "call: epoch[2] ~= server",
    "hold: holder and string.match(holder, '^[^\\t]*') ~= A.name and holder ~= A.seen",
    "lease: not to[f[1]]",
    "stop: not to",
    "fence: string.find(' ' .. commits, ' ' .. mine, 1, true)",
    "answer: removed == 0",
    "halt: call('HGET', KEYS[1], 'phase') ~= A.open",
)
HINTS = sorted({FOUND.seed[name] for name in SOON})
SEEDS = [*HINTS, *(seed for seed in range(1, 41) if seed not in HINTS)]


def left_of(server: Server, wanted: Iterable[Check]) -> set[Check]:
    """The checks whose removal no seed has found."""
    left = set(wanted)
    for seed in SEEDS:
        left -= {found.check for found in search(server, seed, left)[0]}
        if not left:
            break
    return left


@pytest.mark.timeout(600)
def test_checks_that_are_taken_out_one_at_a_time_are_missed(server: Server) -> None:
    assert left_of(server, [check for check in checks() if check.name in SOON]) == set()


def test_a_history_is_right_with_the_scripts_as_they_are(server: Server) -> None:
    """The control: nothing but the check makes the difference."""
    with taken_out():
        assert play(server, derive_storm(1)).findings == []


def test_of_every_check_it_is_known_what_finds_its_removal() -> None:
    """A new or changed check: `make simulate-mutants CHECKS=script` says what finds it: write it into `found.toml`."""
    known = {check.name for check in checks()}
    written = [*FOUND.seed, *FOUND.test, *FOUND.covered]
    assert sorted(known.symmetric_difference(written)) == []
    assert len(written) == len(set(written))
