"""Python source as a tree, also where several threads parse at once.

`ast.parse` of Python 3.11 counts its depth for the whole process, so that one of two calls at once may raise
`SystemError: AST constructor recursion depth mismatch` (python/cpython#106905). Whoever parses here waits for others;
what parses elsewhere in the process is why it tries again.
"""

import ast
import contextlib
import threading
from typing import Any, Final, Literal

TRIES: Final = 5
_one_at_a_time = threading.Lock()


def parsed(text: str, mode: Literal["exec", "eval"] = "exec") -> Any:
    """As `ast.parse`, and raises as that does."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(SystemError), _one_at_a_time:
            return ast.parse(text, mode=mode)
    with _one_at_a_time:
        return ast.parse(text, mode=mode)
