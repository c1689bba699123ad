"""Tests turned into their opposites: what expected 5 expects 23, what had to be true must not be.

Code that solves nothing can still pass a test: it returns a value that is equal to everything, or reads what the
calling line compares with. Neither can tell an opposite from the real test, so it passes both, which no honest code
does. An opposite has the name, the place and the form of its test; only a literal of one assertion is another one, or
its sense. Assertions are taken that a test cannot pass without reaching.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from workers.syntax import parsed

_NOT_PLAIN = re.compile(r"xfail|expectedfailure|raises|skip", re.IGNORECASE)  # in a decorator
_EQUAL = re.compile(r"^assert(?:(?:List|Dict|Tuple|Set|Sequence|MultiLine)?Equals?|HTMLEqual|JSONEqual)$")
_RAISES = re.compile(r"^(?:raises|assertRaises|assertRaisesMessage)$")
_TURNED = {
    "assertTrue": "assertFalse", "assertFalse": "assertTrue", "assertIsNone": "assertIsNotNone",
    "assertIsNotNone": "assertIsNone", "assertIn": "assertNotIn", "assertNotIn": "assertIn", "assertIs": "assertIsNot",
    "assertIsNot": "assertIs", "assertIsInstance": "assertNotIsInstance",
}  # fmt: skip
_UNLIKELY = ("BufferError", "ChildProcessError", "ReferenceError")
_WORDS = ("alpha", "first", "item", "left", "name", "other", "value", "yes")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Edit(NamedTuple):
    """A piece of the source, and what stands there in the opposite. The strongest kind is 0."""

    node: ast.expr
    text: str
    kind: int


class Opposed(NamedTuple):
    """A file, and the tests in it that are opposites now: `("TestClass", "test_name")`."""

    text: str
    tests: Sequence[tuple[str, ...]]


def opposed(text: str, wanted: Callable[[Sequence[str]], bool], chance: random.Random) -> Opposed:
    """A file of tests with every wanted one turned that can be. `wanted` is asked with `("TestClass", "test_name")`."""
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return Opposed(text, ())
    edits, turned = [], []
    for names, function in _tests(tree.body, ()):
        found = list(_edits(function, text, chance)) if wanted((*names, function.name)) else []
        if found:
            best = min(edit.kind for edit in found)
            edits.append(chance.choice([edit for edit in found if edit.kind == best]))
            turned.append((*names, function.name))
    return Opposed(_edited(text, edits), turned)


def _tests(body: Sequence[ast.stmt], names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Function]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, (*names, node.name))
        elif isinstance(node, Function) and node.name.startswith("test"):
            yield names, node


def _edits(function: Function, text: str, chance: random.Random) -> Iterator[Edit]:
    if any(_NOT_PLAIN.search(ast.unparse(each)) for each in function.decorator_list):
        return
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in _own(function)):
        return
    for statement in _reached(function.body):
        yield from _of_statement(statement, function, text, chance)


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Its nodes without those of functions within."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            yield from _own(node)


def _reached(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that nothing but a failure can pass over."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.For) and _is_entered(statement):
            yield from _reached(statement.body)


def _is_entered(statement: ast.With | ast.For) -> bool:
    """True if its body is entered, and hides no failure."""
    if isinstance(statement, ast.With):
        return all(_called(item.context_expr) == "subTest" for item in statement.items)
    over = statement.iter
    left = any(isinstance(node, ast.Continue | ast.Break) for node in ast.walk(statement))
    return isinstance(over, ast.List | ast.Tuple) and bool(over.elts) and not left


def _of_statement(statement: ast.stmt, function: Function, text: str, chance: random.Random) -> Iterator[Edit]:
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            yield from _of_equality(left, right, function, text, chance)
        case ast.Assert(
            test=ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=True | False | None) as known])
        ):
            yield Edit(known, repr(not known.value), 0)
        case ast.Assert(test=test):
            yield Edit(test, f"not ({_source(text, test)})", 1)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as method, args=[left, right, *_])) if _EQUAL.match(
            name
        ):
            yield from _of_equality(left, right, function, text, chance)
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(attr="assertIs"), args=[_, ast.Constant(value=True | False | None) as known, *_]
            )
        ):
            yield Edit(known, repr(not known.value), 0)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name) as method)) if name in _TURNED:
            yield Edit(method, f"{_source(text, owner)}.{_TURNED[name]}", 1)
        case ast.With(items=[ast.withitem(context_expr=ast.Call(args=[ast.Name(id=raised) as error, *_]) as call)]) if (
            _RAISES.match(_called(call)) and raised not in {"Exception", "BaseException"}
        ):
            yield Edit(error, chance.choice(_UNLIKELY), 1)
        case _:
            pass


def _of_equality(
    left: ast.expr, right: ast.expr, function: Function, text: str, chance: random.Random
) -> Iterator[Edit]:
    for side in (right, left):
        literal = _assigned(side, function) if isinstance(side, ast.Name) else side
        try:
            value = ast.literal_eval(literal) if literal is not None else ...
            if literal is not None and value is not ...:
                yield Edit(literal, repr(other(value, chance)), 0)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            continue
    yield Edit(right, f"[{_source(text, right)}, {chance.randrange(11, 90)}]", 2)


def _assigned(name: ast.Name, function: Function) -> ast.expr | None:
    """The value that a name is given once, if it is used nowhere but here."""
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name.id]
    given = [
        statement.value
        for statement in function.body
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == [name.id]
    ]
    return given[0] if len(given) == 1 and len(uses) == 2 else None


def other(value: Any, chance: random.Random) -> Any:
    """A value of the same type and form that is not equal. Raises `ValueError` where there is none."""
    if isinstance(value, list | tuple):
        place = chance.randrange(len(value)) if value else 0
        part = other(value[place], chance) if value else _number(chance)
        return type(value)([*value[:place], part, *value[place + 1 :]])
    if isinstance(value, dict):
        name = chance.choice(list(value) or _WORDS)
        return {**value, name: other(value.get(name), chance)}
    if isinstance(value, set):
        return {*value, chance.randrange(1000, 9000)}
    return _other_scalar(value, chance)


def _other_scalar(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) and value + 1 != value:  # neither infinite nor too large for a difference
        return value + _number(chance)
    if isinstance(value, str):
        return value + chance.choice(_WORDS)
    if isinstance(value, bytes):
        return value + chance.choice(_WORDS).encode()
    if value is None:
        return _number(chance)
    raise ValueError(f"there is no other value like {value!r}")


def _number(chance: random.Random) -> int:
    return chance.randrange(7, 60)


def _called(node: ast.expr) -> str:
    """The last part of the name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func).rpartition(".")[2]


def _source(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text, node) or ast.unparse(node)


def _edited(text: str, edits: Sequence[Edit]) -> str:
    """From the end to the start, so that places stay right. Python counts columns in bytes."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = b"".join(lines)
    for node, new, _ in sorted(edits, key=lambda edit: (edit.node.lineno, edit.node.col_offset), reverse=True):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        data = data[:begin] + new.encode() + data[end:]
    return data.decode()
