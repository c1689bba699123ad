"""The ways in which repositories' tests are run, named and logged. A data set shows which by its log parser."""

import functools
import re
from collections.abc import Sequence
from typing import Literal

from prorl_mq.schema.faults import Cause
from workers.handlers.swe.spec import Spec

Style = Literal["pytest", "django", "functions"]
_OWN: dict[str, Style] = {"parse_log_django": "django", "parse_log_sympy": "functions"}
_DJANGO = {"PASSED": "ok", "FAILED": "FAIL", "ERROR": "ERROR", "SKIPPED": "skipped", "XFAIL": "expected failure"}
_DJANGO_OPTIONS = ("--verbosity", "2", "--settings=test_sqlite", "--parallel", "1")
_SYMPY = {"PASSED": "ok", "FAILED": "F", "ERROR": "E", "SKIPPED": "s", "XFAIL": "f"}


class NoStyle(Exception):
    """Tests of a kind that cannot be run here. No patch is to blame."""

    retryable = False
    cause = Cause.ROW


@functools.cache
def parser_of(project: str) -> str:
    """The name of SWE-bench's parser for a project's logs; pytest's where it has none of its own."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    short = re.split(r"[-_.]", project.rsplit("/", 1)[-1].lower())[0]
    own = f"parse_log_{short}"
    return own if own in PARSER_REGISTRY else "parse_log_pytest"


@functools.cache
def style_of(parser: str) -> Style:
    """Raises `NoStyle` for text that is no Python."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    found = PARSER_REGISTRY.get(parser)
    if found is None or not found.__module__.endswith(".python"):
        raise NoStyle(f"there is no way to run tests whose log parser is {parser!r}: only Python's can be run")
    return _OWN.get(parser, "pytest")


def options_of(style: Style, spec: Spec | None) -> list[str]:
    """Options of the project's own runner. pytest and functions are called in a way of ours."""
    if style != "django":
        return []
    return spec.options if spec is not None and spec.options else list(_DJANGO_OPTIONS)


def module_of(path: str) -> str:
    """As Django's test runner names it: `a/b.py` below `tests` is `a.b`."""
    return path.removesuffix(".py").removeprefix("tests/").replace("/", ".")


def named(style: Style, path: str, names: Sequence[str]) -> str:
    """A test as its runner names it: by its file and `("TestClass", "test_name")`."""
    return ".".join([module_of(path), *names]) if style == "django" else "::".join([path, *names])


def line(style: Style, status: str, shown: str) -> str:
    """A test's line in the log that the parser reads."""
    match style:
        case "pytest":
            return f"{status} {shown}"
        case "django":
            return f"{shown} ... {_DJANGO.get(status, status)}"
        case "functions":
            return f"{shown} {_SYMPY.get(status, status)}"
