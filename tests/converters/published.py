"""The types of trainers as they publish them, read from their packages' source.

To import a package whole would take its dependencies: torch, Ray, vLLM. A class of plain fields needs none of them, so
the definitions that are asked for are run by themselves.
"""

import ast
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def published(module: str, wanted: Sequence[str], given: Mapping[str, Any]) -> Any:
    """The named classes, functions and aliases of a module, in its order. `given` is what they refer to."""
    path = _fetched(module)
    tree = ast.parse(path.read_text())
    found = [node for node in tree.body if _name(node) in wanted]
    assert sorted(map(_name, found)) == sorted(wanted)
    namespace = dict(given)
    exec(compile(ast.Module(found, []), str(path), "exec"), namespace)
    return namespace


def published_method(module: str, kind: str, name: str, given: Mapping[str, Any]) -> Any:
    """A method of a class, as a function: its class may have bases and fields that are not at hand."""
    path = _fetched(module)
    [owner] = [node for node in ast.parse(path.read_text()).body if _name(node) == kind]
    assert isinstance(owner, ast.ClassDef)
    [found] = [each for each in owner.body if isinstance(each, ast.AsyncFunctionDef) and each.name == name]
    namespace = dict(given)
    exec(compile(ast.Module([found], []), str(path), "exec"), namespace)
    return namespace[name]


def importable(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lets the test import the packages that were fetched whole; what they depend on is there only in part."""
    place = _fetched("whole")
    monkeypatch.syspath_prepend(place)
    return place


def _fetched(name: str) -> Path:
    state = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state")).absolute()
    path = state / "trainers" / name
    if not path.exists():
        missing = f"{path} is missing: run `make trainer-types`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def _name(node: ast.stmt) -> str:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""
