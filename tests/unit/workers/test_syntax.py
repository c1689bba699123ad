"""A tree is had although another thread was in the way, and errors of the text are what they were."""

import ast
from typing import Any

import pytest

from workers.syntax import TRIES, parsed


@pytest.mark.parametrize("times", [1, TRIES - 1, TRIES])
def test_what_another_thread_has_spoilt_is_parsed_again(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The control: what never succeeds is raised."""
    left, parse = [SystemError("AST constructor recursion depth mismatch")] * times, ast.parse

    def spoilt(*given: Any, **more: Any) -> ast.AST:
        if left:
            raise left.pop()
        return parse(*given, **more)

    monkeypatch.setattr(ast, "parse", spoilt)
    if times == TRIES:
        with pytest.raises(SystemError):
            parsed("x = 1")
    else:
        assert isinstance(parsed("x = 1"), ast.Module)


def test_errors_of_the_text_are_raised_at_once() -> None:
    for text in ("x =", "\0"):
        with pytest.raises((SyntaxError, ValueError)):
            parsed(text, mode="eval")
