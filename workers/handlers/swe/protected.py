"""Which files of a repository a patch cannot change when it is scored: tests, and what steers how tests run.

They are put back to what they were, whatever else the patch does; so a change of them neither helps nor harms.
"""

import re
import sys
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

TEST_TOOLS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "tox", "exceptiongroup", "packaging"})
SETTINGS = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"}
    | {"pyproject.toml", ".coveragerc", "sitecustomize.py", "usercustomize.py", "pyvenv.cfg"}
)
METADATA = re.compile(r"\.(?:egg-info|dist-info|egg-link|pth)$")
_TESTING = re.compile(r"(?:^|_)tests?(?:$|_)|^testing$|^testsuite$|^r2e_tests$", re.IGNORECASE)
_TEST_FILE = re.compile(r"^test_.*\.py$|_test\.py$|^conftest\.py$")


def protected(paths: Collection[str], hidden_tests: Collection[str]) -> list[str]:
    """Those of the changed paths that are put back."""
    return [path for path in paths if _is_protected(PurePosixPath(path), hidden_tests)]


def is_test(path: str) -> bool:
    """By its name alone, without knowing the hidden tests."""
    parts = PurePosixPath(path).parts
    return bool(_TEST_FILE.search(parts[-1])) or any(part in {"tests", "testing"} for part in parts[:-1])


def files_of_tests(test_patch: str, names: Sequence[str]) -> list[str]:
    """The files that hidden tests stand in: of the patch that brings them, and of names like `a/test_b.py::test_c`."""
    patched = re.findall(r"^diff --git a/.* b/(.*)$", test_patch, re.MULTILINE)
    named = [name.split("::", 1)[0] for name in names if ".py::" in name]
    return sorted({*patched, *named})


def _is_protected(path: PurePosixPath, hidden_tests: Collection[str]) -> bool:
    if str(path) in hidden_tests or path.name in SETTINGS or any(METADATA.search(part) for part in path.parts):
        return True
    if any(path.is_relative_to(place) or PurePosixPath(place).is_relative_to(path) for place in _places(hidden_tests)):
        return True
    return _shadows(path)


def _places(hidden_tests: Collection[str]) -> set[str]:
    """Directories of tests alone. A directory that also holds what is tested must stay open to the patch."""
    found: set[str] = set()
    for test in hidden_tests:
        parents = PurePosixPath(test).parents
        top = [place for place in parents if _TESTING.search(place.name)]
        found.update(str(place) for place in top[-1:])
    return found


def _shadows(path: PurePosixPath) -> bool:
    """A module that would be imported in place of Python's own, or of the test runner's."""
    first, *inner = path.parts[1:] if path.parts[:1] in {("src",), ("lib",)} and path.parts[1:] else path.parts
    name = first.split(".", 1)[0]
    is_module = bool(inner) or first.endswith((".py", ".so", ".pyc"))
    return is_module and (name in TEST_TOOLS or name in sys.stdlib_module_names) and name not in {"test", "site"}
