"""What the test runners of SWE-bench's repositories print, written by hand, and what its parsers are to make of it."""

from typing import NamedTuple

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"


class Log(NamedTuple):
    text: str
    says: dict[str, str]


_PYTEST = """\
============================= test session starts ==============================
collected 5 items

{path} .F.sx                                          [100%]

=================================== FAILURES ===================================
__________________________________ test_wrong __________________________________
E   assert 4 == 5
=========================== short test summary info ============================
PASSED {path}::test_right
PASSED {path}::TestGroup::test_inner[value]
SKIPPED [1] {path}:9: needs a network
XFAIL {path}::test_expected
FAILED {path}::test_wrong - assert 4 == 5
=============== 1 failed, 2 passed, 1 skipped, 1 xfailed in 0.12s ===============
"""


def _pytest(path: str, text: str = _PYTEST) -> Log:
    says = {
        f"{path}::test_right": PASSED, f"{path}::TestGroup::test_inner[value]": PASSED,
        f"{path}::test_expected": XFAIL, f"{path}::test_wrong": FAILED,
    }  # fmt: skip
    return Log(text.format(path=path), says)


def _verbose(path: str) -> Log:
    """`-vv -o console_output_style=classic --tb=no` of an old pytest: the status stands last."""
    log = _pytest(path)
    text = "\n".join(f"{name} {status}" for name, status in log.says.items() if status != XFAIL)
    return Log(
        f"collected 3 items\n\n{text}\n\n3 tests in 0.10 seconds\n", {k: v for k, v in log.says.items() if v != XFAIL}
    )


_DJANGO = """\
Testing against Django installed in '/testbed/django'
Creating test database for alias 'default' ('file:memorydb_default?mode=memory&cache=shared')...
test_add (queries.test_q.QTests) ... ok
test_broken (queries.test_q.QTests) ... ERROR
test_combine (queries.test_q.QTests)
Combines two filters. ... FAIL
test_deep (queries.test_q.QTests) ... skipped 'Database has no feature'
test_known (queries.test_q.QTests) ... expected failure

======================================================================
ERROR: test_broken (queries.test_q.QTests)
----------------------------------------------------------------------
Traceback (most recent call last):
KeyError: 'x'

======================================================================
FAIL: test_combine (queries.test_q.QTests)
----------------------------------------------------------------------
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 5 tests in 0.010s

FAILED (failures=1, errors=1, skipped=1, expected failures=1)
"""
_SYMPY = """\
============================= test process starts ==============================
executable:         /opt/miniconda3/envs/testbed/bin/python  (3.9.20-final-0) [CPython]
cache:              no

sympy/core/tests/test_basic.py[4]
test_structure ok
test_equality F
test_broken E
test_slow s                                                               [FAIL]

________________________________________________________________________________
_______________ sympy/core/tests/test_basic.py:test_equality _______________
Traceback (most recent call last):
AssertionError
============ tests finished: 1 passed, 1 failed, 1 exceptions, in 0.10 seconds =============
"""

LOGS: dict[str, Log] = {
    "astropy/astropy": _pytest("astropy/units/tests/test_format.py"),
    "astropy/astropy, before 2": _verbose("astropy/units/tests/test_format.py"),
    "django/django": Log(
        _DJANGO,
        {
            "test_add (queries.test_q.QTests)": PASSED,
            "test_broken (queries.test_q.QTests)": ERROR,
            "test_broken": ERROR,  # of the summary, which has the name alone
            "Combines two filters.": FAILED,
            "test_combine": FAILED,
            "test_deep (queries.test_q.QTests)": SKIPPED,
        },
    ),
    "matplotlib/matplotlib": Log(
        "PASSED lib/matplotlib/tests/test_a.py::test_button[MouseButton.LEFT]\n"
        "FAILED lib/matplotlib/tests/test_a.py::test_image[png] - ImageComparisonFailure\n",
        {
            "lib/matplotlib/tests/test_a.py::test_button[1]": PASSED,
            "lib/matplotlib/tests/test_a.py::test_image[png]": FAILED,
        },
    ),
    "mwaskom/seaborn": Log(
        "tests/test_a.py::test_verbose PASSED [ 50%]\nPASSED tests/test_a.py::test_right\n"
        "FAILED tests/test_a.py::test_wrong - ValueError: no\n",
        {
            "tests/test_a.py::test_verbose": PASSED,
            "tests/test_a.py::test_right": PASSED,
            "tests/test_a.py::test_wrong": FAILED,
        },
    ),
    "pallets/flask": _pytest("tests/test_basic.py"),
    "psf/requests": Log(
        "PASSED tests/test_utils.py::test_path[/some/long/path/file.zip-x]\n"
        "PASSED tests/test_utils.py::test_url[//example.com/path]\nFAILED tests/test_utils.py::test_wrong - assert 0\n",
        {
            "tests/test_utils.py::test_path[/file.zip-x]": PASSED,  # paths are cut, addresses are not
            "tests/test_utils.py::test_url[//example.com/path]": PASSED,
            "tests/test_utils.py::test_wrong": FAILED,
        },
    ),
    "pydata/xarray": _pytest("xarray/tests/test_dataset.py"),
    "pylint-dev/pylint": _pytest("tests/test_functional.py"),
    "pytest-dev/pytest": _pytest("testing/test_collection.py"),
    "scikit-learn/scikit-learn": Log(
        "PASSED sklearn/tests/test_a.py::test_text[a b c]\n"
        "FAILED sklearn/tests/test_a.py::test_wrong[x y] - ValueError\n",
        {
            "sklearn/tests/test_a.py::test_text[a b c]": PASSED,
            "sklearn/tests/test_a.py::test_wrong[x y]": FAILED,
        },
    ),
    "sphinx-doc/sphinx": Log(
        "py39: commands[0]> python -X dev -m pytest --durations 25 tests/test_build.py\n"
        "\x1b[32mPASSED\x1b[0m tests/test_build.py::\x1b[1mtest_right\x1b[0m\n"
        "\x1b[31mFAILED\x1b[0m tests/test_build.py::\x1b[1mtest_wrong\x1b[0m - AssertionError\n",
        {"tests/test_build.py::test_right": PASSED, "tests/test_build.py::test_wrong": FAILED},
    ),
    "sympy/sympy": Log(
        _SYMPY,
        {
            "test_structure": PASSED,
            "test_equality": FAILED,
            "test_broken": ERROR,
            "sympy/core/tests/test_basic.py:test_equality": FAILED,
        },
    ),
}  # fmt: skip
