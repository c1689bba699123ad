"""A call is declared once, in the asynchronous client; a public name is found where `prorl_mq` says."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prorl_mq
from prorl_mq import AsyncClient, Client
from prorl_mq.client import generate, synchronous


def test_the_synchronous_client_is_what_the_generator_writes() -> None:
    """If it is not: `python -m prorl_mq.client.generate`."""
    assert Path(synchronous.__file__).read_text() == generate.source()


def test_both_clients_have_the_same_calls_with_the_same_arguments() -> None:
    assert _calls(Client) == _calls(AsyncClient)


@pytest.mark.parametrize("name", prorl_mq.__all__)
def test_a_public_name_is_there_for_users_and_for_type_checkers(name: str) -> None:
    tree = ast.parse(inspect.getsource(prorl_mq))
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert getattr(prorl_mq, name) is not None
    assert name in dir(prorl_mq)
    assert name in typed | {"__version__"}


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'prorl_mq' has no attribute 'Klient'"):
        prorl_mq.Klient  # noqa: B018 - it is the access that raises


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = "import sys, prorl_mq; print([name for name in sys.modules if name.startswith('prorl_mq.')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def _calls(client: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """Each public call with its parameters: name, kind and default."""
    calls: dict[str, Callable[..., Any]] = {
        name: call
        for name, call in inspect.getmembers(client, inspect.isfunction)
        if (not name.startswith("_") and name not in {"close", "aclose"}) or name == "__init__"
    }
    return {
        name: [(each.name, each.kind, each.default) for each in inspect.signature(call).parameters.values()]
        for name, call in calls.items()
    }
