"""A pytest plugin: `pytest -p tests.simulation.without --without "assign: f[2] ~= A.token" tests/verbs/test_assign.py`.

The tests run on scripts without one check, or several; one of them must fail.
"""

import pytest

from tests.simulation.checks import checks
from tests.simulation.mutants import taken_out


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without", action="append", required=True, help="a check that is taken out: FILE: PART")


def pytest_configure(config: pytest.Config) -> None:
    wanted = set(config.getoption("--without"))
    out = taken_out(*(check for check in checks() if check.name in wanted))
    out.__enter__()
    config.add_cleanup(lambda: out.__exit__(None, None, None))
