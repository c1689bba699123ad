"""Which files of a repository a patch cannot change when it is scored: its row's tests, and what steers how they run.

They are put back to what they were, whatever else the patch does; so a change of them neither helps nor harms. What a
package consists of is never among them, whatever it is called: `src/_pytest` of pytest, `sympy/testing` and
`astropy/tests/runner.py` are sources like others.
"""

import re
import sys
import tomllib
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

TEST_TOOLS = frozenset(
    {"pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "tox", "exceptiongroup", "packaging"}
    | {"sitecustomize", "usercustomize"}
)
SHARED = frozenset({"setup.cfg", "tox.ini", "pyproject.toml"})  # settings of the runner stand beside others
SETTINGS = SHARED | {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", ".coveragerc"}
ENVIRONMENTS = frozenset({".venv", "venv", "pyvenv.cfg"})  # the tests' interpreter may be there
METADATA = re.compile(r"\.(?:egg-info|dist-info|egg-link|pth)$")
_TESTS = re.compile(r"(?:^|_)tests?(?:$|_)|^testsuite$", re.IGNORECASE)
_TEST_FILE = re.compile(r"^test_.*\.py$|_test\.py$|^conftest\.py$")
_OUTERMOST = ("test", "tests", "testing", "r2e_tests")


def protected(paths: Collection[str], hidden_tests: Collection[str], own: Collection[str] = ()) -> list[str]:
    """Those of the changed paths that are put back. `own`: the modules that the repository itself consists of."""
    hidden = [PurePosixPath(test) for test in hidden_tests]
    places = _places(hidden)
    return [path for path in paths if _is_protected(PurePosixPath(path), hidden, places, own)]


def may_be_source(path: str) -> bool:
    """True if a protected path may be a module that its package uses: `astropy/tests/runner.py`."""
    *above, last = PurePosixPath(path).parts
    within = any(_TESTS.search(part) for part in above[1:]) and above[0] not in _OUTERMOST
    return within and last.endswith(".py") and not _TEST_FILE.search(last) and last != "__init__.py"


def is_test(path: str) -> bool:
    """By its name alone, without knowing the hidden tests."""
    first, *inner = PurePosixPath(path).parts
    return bool(_TEST_FILE.search((inner or [first])[-1])) or (bool(inner) and first in _OUTERMOST)


def files_of_patch(patch: str) -> frozenset[str]:
    """The files that a patch changes."""
    return frozenset(re.findall(r"^diff --git a/.* b/(.*)$", patch, re.MULTILINE))


def files_of_tests(test_patch: str, names: Sequence[str]) -> list[str]:
    """The files that hidden tests stand in: of the patch that brings them, and of names like `a/test_b.py::test_c`."""
    named = [name.split("::", 1)[0] for name in names if ".py::" in name]
    return sorted({*files_of_patch(test_patch), *named})


def steers_tests(path: str, before: bytes, after: bytes) -> bool:
    """True if a change of settings shared with other tools is one of the test runner's."""
    read = _of_toml if path.endswith(".toml") else _of_ini
    try:
        return read(before) != read(after)
    except (ValueError, RecursionError):
        return True


def _of_toml(text: bytes) -> object:
    tools = tomllib.loads(text.decode()).get("tool", {})
    return {name: value for name, value in tools.items() if "pytest" in name} if isinstance(tools, dict) else tools


def _of_ini(text: bytes) -> list[str]:
    """The lines of every section that pytest could read, as it splits them."""
    kept, wanted = [], False
    for line in text.decode().splitlines():
        if line.startswith("["):
            wanted = "pytest" in line
        if wanted:
            kept.append(line)
    return kept


def _is_protected(
    path: PurePosixPath, hidden: Sequence[PurePosixPath], places: Collection[PurePosixPath], own: Collection[str]
) -> bool:
    if any(test.is_relative_to(path) for test in hidden) or any(METADATA.search(part) for part in path.parts):
        return True
    if path.name in SETTINGS and any(test.is_relative_to(path.parent) for test in hidden):
        return True
    if any(path.is_relative_to(place) or place.is_relative_to(path) for place in places):
        return True
    return path.parts[0] in ENVIRONMENTS or _shadows(path, own)


def _places(hidden: Sequence[PurePosixPath]) -> set[PurePosixPath]:
    """The outermost directory of tests around each hidden one. A package's `testing` is none."""
    found: set[PurePosixPath] = set()
    for test in hidden:
        around = [place for place in test.parents if _TESTS.search(place.name) or str(place) in _OUTERMOST]
        found.update(around[-1:])
    return found


def _shadows(path: PurePosixPath, own: Collection[str]) -> bool:
    """A module that would be imported in place of Python's own, or of the test runner's."""
    first, *inner = path.parts[1:] if path.parts[:1] in {("src",), ("lib",)} and path.parts[1:] else path.parts
    name = first.split(".", 1)[0]
    is_module = bool(inner) or first.endswith((".py", ".so", ".pyc"))
    known = name in TEST_TOOLS or name in sys.stdlib_module_names
    return is_module and known and name not in own and name not in {"test", "site"}
