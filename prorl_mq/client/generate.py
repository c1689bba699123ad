"""`python -m prorl_mq.client.generate` writes `synchronous.py` from `asynchronous.py`, where calls are declared."""

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prorl_mq.client import asynchronous

FILE: Final = Path(__file__).with_name("synchronous.py")
IN_BASE: Final = "aclose"  # `Threaded.close`
HEAD: Final = '''"""The client of a trainer that has no event loop: the same calls, made on a loop in its own thread.

Generated from `asynchronous.py` by `python -m prorl_mq.client.generate`: change that one, and run this.
"""
'''
CLASS: Final = '''
from collections.abc import Iterator
from prorl_mq.client.asynchronous import WAIT_S, AsyncClient
from prorl_mq.client.threaded import Threaded

class Client(Threaded):
    """`AsyncClient` for plain code: the same arguments, methods and errors. May be shared by threads."""
'''


def source() -> str:
    """The module as it is to be; formatted by ruff."""
    tree = ast.parse(inspect.getsource(asynchronous))
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    [client] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AsyncClient"]
    methods = [textwrap.indent(text, "    ") for node in client.body for text in _method(node)]
    text = "\n".join([HEAD, *imports, CLASS, "\n\n".join(methods)])
    return _ruff("format", "-", given=_ruff("check", "--select", "I,F401", "--fix", "--quiet", "-", given=text))


def _method(node: ast.stmt) -> Iterator[str]:
    """The synchronous twin of a public method; nothing for any other statement."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if node.name == "__init__":
        made = f"super().__init__(AsyncClient({_passed(node.args)}))"
        yield f"def __init__({ast.unparse(node.args)}) -> None:\n    {made}"
    elif not node.name.startswith("_") and node.name != IN_BASE:
        assert node.returns is not None
        answer = ast.unparse(node.returns).replace("AsyncIterator", "Iterator")
        runner = "_run" if isinstance(node, ast.AsyncFunctionDef) else "_iterate"
        call = f"self.{runner}(self._client.{node.name}({_passed(node.args)}))"
        yield "\n".join(
            [
                f"def {node.name}({ast.unparse(node.args)}) -> {answer}:",
                textwrap.indent(_docstring(node), "    "),
                f"    {call}" if answer == "None" else f"    return {call}",
            ]
        )


def _passed(arguments: ast.arguments) -> str:
    """The arguments of a method, as a call hands them on."""
    named = [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    return ", ".join([*(each.arg for each in arguments.args[1:]), *named])


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node) or ""
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _ruff(*words: str, given: str) -> str:
    command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(FILE)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, cwd=FILE.parent)
    return done.stdout


if __name__ == "__main__":
    FILE.write_text(source())
