"""Reads the tests of a row into one form, from each of the forms that data sets have.

`{"inputs", "outputs", "fn_name"?}` (APPS, TACO, Codeforces, CodeContests), a list of `{"input", "output", ...}`
(DeepCoder), and LiveCodeBench's `public_test_cases` and `private_test_cases` with a function's name in `metadata`.
"""

import base64
import json
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.handlers.rows import BadRow, ground_truth, parsed

MAX_TESTS_BYTES = 256 << 20


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Text for standard input and what should come out, or a function's arguments and what it should return."""

    stdin: str = ""
    arguments: Sequence[Any] = ()
    function: str | None = None  # None: a program that reads standard input
    expected: Any = ""
    exact: bool = False  # compared as LiveCodeBench's own harness does: its rows have no tolerance
    wrapped: bool = False  # the expected value may stand in a list of its own, as APPS writes it


class CaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one test."""

    seconds: float = 10.0  # of CPU time
    memory_bytes: int = 1 << 30


def cases_of(row: Mapping[str, Any]) -> list[Case]:
    """Raises `BadRow`."""
    try:
        found = _published(row) if "private_test_cases" in row or "public_test_cases" in row else _of(_truth(row))
    except (ValueError, TypeError, KeyError, LookupError, AttributeError, zlib.error) as error:
        raise BadRow(f"the row's tests cannot be read: {type(error).__name__}: {error}") from error
    if not found:
        raise BadRow("the row has no tests")
    return found


def limits_of(row: Mapping[str, Any]) -> CaseLimits:
    """`time_limit` in seconds and `memory_limit` in megabytes, numbers or texts such as `2 seconds`."""
    limits = CaseLimits()
    seconds, megabytes = _number(row.get("time_limit")), _number(row.get("memory_limit"))
    return CaseLimits(
        seconds=min(max(2 * seconds, 1.0), 60.0)
        if seconds
        else limits.seconds,  # twice: those are of compiled programs
        memory_bytes=int(min(max(megabytes, 64.0), 4096.0)) << 20 if megabytes else limits.memory_bytes,
    )


def _truth(row: Mapping[str, Any]) -> Any:
    for name in ("tests", "test_cases", "input_output"):
        if row.get(name):
            return parsed(row[name])
    return ground_truth(row)


def _of(tests: Any) -> list[Case]:
    if isinstance(tests, Mapping):
        name = tests.get("fn_name")
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        return [_call(name, _arguments(given), out) if name else _text(given, out) for given, out in pairs]
    return [_one(test, None) for test in tests]


def _one(test: Mapping[str, Any], function: str | None) -> Case:
    kind, exact = test.get("testtype") or test.get("type") or "stdin", "testtype" in test
    if kind in {"stdin", "stdin_stdout", "stdio"}:
        return _text(test["input"], test["output"], exact=exact)
    metadata = parsed(test.get("metadata")) or {}
    name = test.get("fn_name") or metadata.get("func_name") or function
    if not name:
        raise KeyError("the name of the function under test")
    if kind == "functional":  # LiveCodeBench: a line of JSON for each argument
        arguments = [json.loads(line) for line in test["input"].split("\n") if line.strip()]
        return Case(function=name, arguments=arguments, expected=json.loads(test["output"]), exact=exact)
    return _call(name, _arguments(test["input"]), test["output"])


def _text(given: Any, expected: Any, *, exact: bool = False) -> Case:
    return Case(stdin=_lines(given), expected=_lines(expected), exact=exact)


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _call(name: str, arguments: Sequence[Any], expected: Any) -> Case:
    return Case(function=name, arguments=arguments, expected=_json(expected), wrapped=True)


def _arguments(given: Any) -> Sequence[Any]:
    value = _json(given)
    return value if isinstance(value, list) else [value]


def _json(value: Any) -> Any:
    """JSON text may stand for a value; text that is no JSON is text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _published(row: Mapping[str, Any]) -> list[Case]:
    metadata = parsed(row.get("metadata")) or {}
    cases = [*(parsed(row.get("public_test_cases")) or []), *_private(row.get("private_test_cases"))]
    return [_one(case, metadata.get("func_name")) for case in cases]


def _private(packed: Any) -> Sequence[Any]:
    """JSON, or what LiveCodeBench makes of it: pickled, compressed and in base 64. Nothing is unpickled here."""
    value = parsed(packed)
    if not isinstance(value, str) or not value:
        return value or []
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(value), MAX_TESTS_BYTES)
    texts = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    cases: Sequence[Any] = json.loads(texts[0])
    return cases


def _number(value: Any) -> float:
    found = re.search(r"\d+(?:\.\d+)?", str(value)) if value is not None else None
    return float(found.group()) if found else 0.0
