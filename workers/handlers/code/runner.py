"""Runs one solution as LiveCodeBench's harness prepares it. The text of this file is what runs in the sandbox.

    python3 -I -c TEXT SOLUTION < the test's input
    python3 -I -c TEXT SOLUTION CODEC < {"function", "arguments"}

The solution finds the names that the harness imports for it, may call itself 50,000 deep, and may leave by
`sys.exit` with any code once its output is written. What a function returns is written by `CODEC`, the text of
`workers.handlers.plain`.
"""

from __future__ import annotations  # Python 3.8 may run this

import importlib
import json
import os
import sys
import types
from typing import Any

# In this order: names of later ones hide those of earlier ones.
STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
NOT_NAMED = ("builtins", "typing")
RECURSION = 50_000
DIGITS = 50_000  # of an integer that is read or written


def prelude(space: dict[str, Any]) -> None:
    """Puts the names there."""
    for name in STARRED:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
        space.update((each, getattr(module, each)) for each in public)
    space.update((name, importlib.import_module(name)) for name in STARRED if name not in NOT_NAMED)
    sys.setrecursionlimit(RECURSION)
    getattr(sys, "set_int_max_str_digits", int)(DIGITS)


def execute(path: str, name: str) -> dict[str, Any]:
    """The solution as a module of this name; its namespace."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        source = file.read()
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = path
    sys.argv = [path]
    prelude(module.__dict__)
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module.__dict__


def found(space: dict[str, Any], name: str) -> Any:
    """The function under test: a method of `Solution`, where there is one."""
    solution = space.get("Solution")
    method = getattr(solution(), name, None) if isinstance(solution, type) else None
    return space[name] if method is None else method


def call(path: str, codec: str) -> None:
    """Writes what the function returned. What it prints goes to standard error."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    packing: dict[str, Any] = {"__name__": "plain"}
    exec(codec, packing)  # noqa: S102
    pack, dumps, write = packing["pack"], json.dumps, results.write
    given = json.load(sys.stdin)
    value = found(execute(path, "solution"), given["function"])(*given["arguments"])
    write(dumps(pack(value)))
    results.close()


def main() -> None:
    """As its arguments say."""
    if len(sys.argv) > 2:
        call(*sys.argv[1:3])
        return
    try:
        execute(sys.argv[1], "__main__")
    except SystemExit:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
