"""Runs hidden tests, and tells over a pipe how each one ended. The text of this file is what runs in the sandbox.

It runs in the repository's own Python, which may be as old as 3.5, in one process with the code under test. Each event
is a line of JSON under a nonce. That is read while Python has nothing but its own library (`-S`); packages come after
it, those that EVAL has installed before the image's. One style for each test runner that data sets use: pytest;
Django's, which is unittest's; and SymPy's, which calls functions.
"""

import importlib
import inspect
import json
import os
import runpy
import site
import sys
import traceback
from typing import Any, Callable, Dict, List, Set, Tuple  # noqa: F401, UP035 - Python 3.5 has no annotations of variables

Tell = Callable[..., None]
FAILED = 1  # exit code


def with_pytest(tell: Tell, options: List[str], files: List[str]) -> int:  # noqa: UP006
    import pytest

    class Reporter:
        def __init__(self) -> None:
            self.seen = {}  # type: Dict[str, str]

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            expected = hasattr(report, "wasxfail")
            status = None
            if report.failed:
                status = "FAILED" if report.when == "call" else "ERROR"
            elif report.skipped:
                status = "XFAIL" if expected else "SKIPPED"
            elif report.when == "call":
                status = "XPASS" if expected else "PASSED"
            if status is not None and self.seen.get(report.nodeid) not in ("FAILED", "ERROR"):
                self.seen[report.nodeid] = status
            if report.when == "teardown":
                tell("test", report.nodeid, self.seen.pop(report.nodeid, "ERROR"), report.nodeid)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tell("test", report.nodeid, "ERROR", report.nodeid)

    quiet = ["-q", "-rN", "--tb=short", "-o", "cache_dir=/tmp/.pytest_cache"]
    return int(pytest.main([*quiet, *options, *files], [Reporter()]))


def with_django(tell: Tell, options: List[str], files: List[str]) -> int:  # noqa: UP006
    from unittest.runner import TextTestResult

    status = {}  # type: Dict[str, str]
    told = set()  # type: Set[str]

    def say(result: Any, test: Any) -> None:
        if test.id() not in told:
            told.add(test.id())
            shown = result.getDescription(test).split("\n")[-1].strip()  # where a log has a test's doc, not its name
            tell("test", test.id(), status.get(test.id(), "ERROR"), shown)

    def watched(name: str, means: str) -> None:
        real = getattr(TextTestResult, name)

        def method(self: Any, test: Any, *rest: Any) -> Any:
            failing = name != "addSubTest" or rest[-1] is not None
            if failing and status.get(test.id()) not in ("FAILED", "ERROR"):
                status[test.id()] = means
            if means == "ERROR":  # a fixture's error has no end of a test to wait for
                say(self, test)
            return real(self, test, *rest)

        setattr(TextTestResult, name, method)

    for name, means in (
        ("addSuccess", "PASSED"), ("addError", "ERROR"), ("addFailure", "FAILED"), ("addSkip", "SKIPPED"),
        ("addExpectedFailure", "XFAIL"), ("addUnexpectedSuccess", "XPASS"), ("addSubTest", "FAILED"),
    ):  # fmt: skip
        watched(name, means)
    real_stop = TextTestResult.stopTest

    def stop(self: Any, test: Any) -> None:
        say(self, test)
        real_stop(self, test)

    TextTestResult.stopTest = stop  # type: ignore[method-assign]
    sys.path.insert(0, os.path.abspath("tests"))  # noqa: PTH100
    labels = [path[len("tests/") : -len(".py")].replace("/", ".") for path in files if path.startswith("tests/")]
    sys.argv = ["tests/runtests.py", *options, *labels]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def with_functions(tell: Tell, _options: List[str], files: List[str]) -> int:  # noqa: UP006
    failed = False
    for path in files:
        try:
            module = importlib.import_module(path[: -len(".py")].replace("/", "."))
        except Exception:
            traceback.print_exc()
            tell("test", path, "ERROR", path)
            failed = True
            continue
        named = [each for each in vars(module).items() if each[0].startswith("test_")]
        for name, test in sorted(named, key=place):
            if getattr(test, "__module__", None) == module.__name__:
                status = "SKIPPED" if getattr(test, "_slow", False) or hasattr(module, "disabled") else called(test)
                failed = failed or status in ("FAILED", "ERROR")
                tell("test", path + "::" + name, status, name)
    return FAILED if failed else 0


def place(named: Tuple[str, Any]) -> Tuple[int, str]:  # noqa: UP006
    """In a file; SymPy runs its tests in that order."""
    code = getattr(inspect.unwrap(named[1]), "__code__", None)
    return getattr(code, "co_firstlineno", 0), named[0]


def called(test: Callable[[], object]) -> str:
    """A status. SymPy's decorators raise exceptions of these names."""
    try:
        test()
    except Exception as error:
        known = {"AssertionError": "FAILED", "Skipped": "SKIPPED", "XFail": "XFAIL", "XPass": "XPASS"}
        status = known.get(type(error).__name__, "ERROR")
        if status in ("FAILED", "ERROR"):
            traceback.print_exc()
        return status
    return "PASSED"


def packages(user_site: str) -> None:
    """Does what `-S` has left out: the directories of packages, and their `.pth` files."""
    version = "python{}.{}".format(*sys.version_info[:2])
    site.addsitedir(os.path.join(user_site, "lib", version, "site-packages"))  # noqa: PTH118
    site.main()


STYLES = {"pytest": with_pytest, "django": with_django, "functions": with_functions}


def main() -> None:
    """Arguments: the pipe for events, the one that holds the nonce, and JSON: style, options, tests, site."""
    events, secret, given = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    os.set_inheritable(events, False)
    with os.fdopen(secret) as pipe:
        nonce = pipe.readline().strip()
    write, dumps, leave = os.write, json.dumps, os._exit

    def tell(*event: object) -> None:
        write(events, (dumps([nonce, *event]) + "\n").encode())

    packages(given["site"])
    code = STYLES[given["style"]](tell, given["options"], given["tests"])
    tell("end", code)
    sys.stdout.flush()
    leave(code)


if __name__ == "__main__":
    main()
