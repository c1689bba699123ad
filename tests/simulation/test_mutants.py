"""A script without one of its checks is found. The pairs come from `python -m tests.simulation --mutants SCRIPTS`."""

import pytest

from tests.simulation.mutants import applied, mutants
from tests.simulation.options import STORM, derive
from tests.simulation.replay import play
from tests.simulation.server import Server

FOUND_BY = {
    ("hold", "holder and string.match(holder, '^[^\\t]*') ~= A.name and holder ~= A.seen"): 1,
    ("claim", "not to"): 1,
    ("stop", "not to"): 1,
    ("claim", "not mine"): 28,
}


@pytest.mark.parametrize(("check", "seed"), FOUND_BY.items(), ids=[" ".join(check) for check in FOUND_BY])
def test_a_check_that_is_taken_out_is_missed(server: Server, check: tuple[str, str], seed: int) -> None:
    options = derive(seed, shares=STORM)
    [mutant, *_] = [each for each in mutants(check[0]) if each.condition == check[1]]
    assert play(server, options).findings == []
    with applied(mutant):
        assert play(server, options).findings


def test_every_script_that_refuses_has_checks_that_can_be_taken_out() -> None:
    for name in ("admit", "advance", "claim", "confirm", "fail", "finish", "hold", "promote", "reap", "settle", "stop"):
        assert mutants(name), name
